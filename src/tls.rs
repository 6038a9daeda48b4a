//! Certificates: loaded, made, pinned and swapped.
