//! SHAKE-256 (FIPS 202): the vectors' data and digests come from it, because Python has it and nothing else needs it here.

/// The first `length` bytes for `message`.
pub(crate) fn shake256(message: &[u8], length: usize) -> Vec<u8> {
    let mut state = [0_u64; 25];
    let mut padded = message.to_vec();
    padded.push(0x1F);
    padded.resize(padded.len().next_multiple_of(RATE), 0);
    *padded.last_mut().expect("at least one block") |= 0x80;
    for block in padded.chunks_exact(RATE) {
        for (lane, bytes) in state.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane ^= u64::from_le_bytes(*bytes);
        }
        permute(&mut state);
    }
    let mut out = Vec::with_capacity(length + RATE);
    while out.len() < length {
        out.extend(state[..RATE / 8].iter().flat_map(|lane| lane.to_le_bytes()));
        permute(&mut state);
    }
    out.truncate(length);
    out
}

/// Keccak-f[1600]. The constants of ι come from the linear feedback register of the standard.
fn permute(a: &mut [u64; 25]) {
    let mut register = 1_u8;
    for _ in 0..24 {
        let parity: [u64; 5] = std::array::from_fn(|x| (0..5).fold(0, |sum, y| sum ^ a[x + 5 * y]));
        for (i, lane) in a.iter_mut().enumerate() {
            *lane ^= parity[(i + 4) % 5] ^ parity[(i + 1) % 5].rotate_left(1);
        }
        let (mut x, mut y, mut moved) = (1, 0, a[1]);
        for t in 0..24_u32 {
            (x, y) = (y, (2 * x + 3 * y) % 5);
            let lane = x + 5 * y;
            moved = std::mem::replace(&mut a[lane], moved.rotate_left((t + 1) * (t + 2) / 2 % 64));
        }
        for row in a.as_chunks_mut::<5>().0 {
            let old = *row;
            for x in 0..5 {
                row[x] = old[x] ^ (!old[(x + 1) % 5] & old[(x + 2) % 5]);
            }
        }
        for bit in 0..7 {
            if register & 1 != 0 {
                a[0] ^= 1 << ((1 << bit) - 1);
            }
            register = register << 1 ^ if register & 0x80 != 0 { 0x71 } else { 0 };
        }
    }
}

/// Bytes of a block.
const RATE: usize = 136;
