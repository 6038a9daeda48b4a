//! Where segments come from: origins over HTTP and watched directories.
