class HandlerScenes: pass
