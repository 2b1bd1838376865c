"""The kernels that come with Foretune, one file each."""
