//! Back ends that hold segments and combine their blocks, each owned by one thread.
