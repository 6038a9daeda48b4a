//! Coded blocks on their way from the encoder to the sessions, in a bounded pool of slots.
