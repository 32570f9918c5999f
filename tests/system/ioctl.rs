//! ioctl
