"""Where frames come from: live cameras, webcams, video files and folders of images."""
