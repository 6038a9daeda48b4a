//! An origin, a clip and a lossy path to try everything with: for the demo and for tests.
