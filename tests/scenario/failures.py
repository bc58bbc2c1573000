class FailureScenes: pass
