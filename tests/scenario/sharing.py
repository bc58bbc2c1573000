class SharingScenes: pass
