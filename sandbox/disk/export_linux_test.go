package disk

// MountImage mounts an image by a loop device that goes with the mount.
var MountImage = mountImage
