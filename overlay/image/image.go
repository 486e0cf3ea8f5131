// Package image brings images to a store of worlds and takes worlds out of it: archives of
// `docker save` of any age, OCI image layouts as a tar or a directory, and registries. What
// it reads is hostile; what the store keeps of an image, and when, overlay decides.
package image
