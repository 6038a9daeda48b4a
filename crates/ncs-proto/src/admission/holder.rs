//! The owner of an account.

/// Names the owner of an account: the subject of a token where it names one, otherwise the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder([u8; 32]);

impl Holder {
    /// The holder that these bytes name.
    pub fn of(kind: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ncserverd admission holder v1");
        for part in [&[kind.as_bytes()], parts].concat() {
            hasher
                .update(&(part.len() as u64).to_le_bytes())
                .update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// A number that no two holders share.
    pub fn as_u128(self) -> u128 {
        let mut low = [0; 16];
        low.copy_from_slice(&self.0[..16]);
        u128::from_le_bytes(low)
    }
}
