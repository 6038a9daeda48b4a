//! SHAKE-256 (FIPS 202), from which the parameters of the hash are derived. Tens of kilobytes a process: it need not be fast.

/// The first bytes of what `message` becomes.
pub(super) fn shake_256(message: &[u8], out: &mut [u8]) {
    let mut state = [0; LANES];
    let mut blocks = message.chunks_exact(RATE);
    for block in &mut blocks {
        absorb(&mut state, block);
        permute(&mut state);
    }
    let mut last = [0; RATE];
    let rest = blocks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    // The suffix of SHAKE and the first bit of the padding; the padding's last bit.
    last[rest.len()] ^= 0x1f;
    last[RATE - 1] ^= 0x80;
    absorb(&mut state, &last);
    for out in out.chunks_mut(RATE) {
        permute(&mut state);
        let bytes = state.iter().flat_map(|lane| lane.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
    }
}

/// So many bytes of what `message` becomes.
#[cfg(test)]
pub(crate) fn derived_from(message: &[u8], length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    shake_256(message, &mut out);
    out
}

fn absorb(state: &mut [u64; LANES], block: &[u8]) {
    for (lane, bytes) in state.iter_mut().zip(block.as_chunks().0) {
        *lane ^= u64::from_le_bytes(*bytes);
    }
}

/// Keccak-f[1600].
fn permute(a: &mut [u64; LANES]) {
    let mut register = 1_u8;
    for _ in 0..ROUNDS {
        let parity: [u64; 5] = std::array::from_fn(|x| a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20]);
        for (index, lane) in a.iter_mut().enumerate() {
            *lane ^= parity[(index + 4) % 5] ^ parity[(index + 1) % 5].rotate_left(1);
        }
        let (mut x, mut y, mut moved) = (1, 0, a[1]);
        for turn in 1..=24 {
            (x, y) = (y, (2 * x + 3 * y) % 5);
            moved = std::mem::replace(&mut a[x + 5 * y], moved.rotate_left(turn * (turn + 1) / 2 % 64));
        }
        for row in a.as_chunks_mut::<5>().0 {
            let old = *row;
            row.iter_mut().enumerate().for_each(|(x, lane)| *lane ^= !old[(x + 1) % 5] & old[(x + 2) % 5]);
        }
        for bit in 0..7 {
            a[0] ^= u64::from(register & 1) << ((1 << bit) - 1);
            // x^8 + x^6 + x^5 + x^4 + 1.
            register = register << 1 ^ if register >> 7 == 1 { 0x71 } else { 0 };
        }
    }
}

const ROUNDS: usize = 24;
const LANES: usize = 25;
/// Bytes that a permutation takes in or gives out.
const RATE: usize = 136;

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(message: &[u8], length: usize) -> String {
        let mut out = vec![0; length];
        shake_256(message, &mut out);
        out.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn gives_what_others_do() {
        // NIST's examples of SHAKE-256 for no bytes and for 200 bytes of 0xa3, and what Python's hashlib says of lengths about the rate.
        assert_eq!(hex(b"", 32), "46b9dd2b0ba88d13233b3feb743eeb243fcd52ea62b81b82b50c27646ed5762f");
        assert_eq!(hex(&[0xa3; 200], 32), "cd8a920ed141aa0407a22d59288652e9d9f1a7ee0c1e7c1ca699424da84a904d");
        for (length, last) in [
            (135, "1733bb343b0c1915fdfec816ff07334b"),
            (136, "96b2b9ca34bb956fc44c811d17cf0315"),
            (137, "475e0a82d6c3daaa0808bc7207693b55"),
        ] {
            assert_eq!(&hex(&vec![0x5c; length], 300)[2 * 284..], last);
        }
    }
}
