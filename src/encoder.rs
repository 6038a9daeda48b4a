//! What to encode next: demand of all sessions gathered into batches for the device.
