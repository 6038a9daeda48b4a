//! The byte field GF(2^8)/0x11D: elements, coefficient rows, row operations and their instruction sets.
