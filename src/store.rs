//! Which segments are held, within which budget, and which go first.
