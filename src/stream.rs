//! Publishing points: what a path of a stream is, resolved once however many ask.
