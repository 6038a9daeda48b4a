//! Which rows are asked for, and what is done with those that arrive: encode, recode, eliminate, decode.
