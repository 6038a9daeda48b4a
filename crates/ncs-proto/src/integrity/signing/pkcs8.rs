//! Private keys for Ed25519 in DER: PKCS #8 (RFC 5208, RFC 5958) with the identifier of RFC 8410.

/// A private key, and the public one where the file contains it.
type Halves = ([u8; 32], Option<[u8; 32]>);

/// The bytes before the 32 secret ones: a PrivateKeyInfo of version 0, the algorithm's object
/// identifier, and two octet strings.
const HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// id-Ed25519 without parameters.
const ED25519: [u8; 5] = [0x06, 0x03, 0x2b, 0x65, 0x70];

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
const ATTRIBUTES: u8 = 0xa0;
/// The tag of RFC 5958; some programs have put a whole bit string inside.
const PUBLIC_KEY: u8 = 0x81;
const PUBLIC_KEY_EXPLICIT: u8 = 0xa1;

/// A key of version 1, with its private half alone.
pub(super) fn written(secret: &[u8; 32]) -> [u8; HEAD.len() + 32] {
    let mut der = [0; HEAD.len() + 32];
    let (head, rest) = der.split_at_mut(HEAD.len());
    head.copy_from_slice(&HEAD);
    rest.copy_from_slice(secret);
    der
}

/// Reads a key of version 1 or 2; `None` for other algorithms, or other bytes.
pub(super) fn read(der: &[u8]) -> Option<Halves> {
    let content = alone(SEQUENCE, der)?;
    let (version, rest) = element(INTEGER, content)?;
    let (algorithm, rest) = element(SEQUENCE, rest)?;
    let (private, rest) = element(OCTET_STRING, rest)?;
    let secret = alone(OCTET_STRING, private)?.try_into().ok()?;
    let rest = element(ATTRIBUTES, rest).map_or(rest, |(_, rest)| rest);
    let public = match (version, rest) {
        ([0 | 1], []) => None,
        ([1], rest) => Some(public(rest)?),
        _ => return None,
    };
    (algorithm == ED25519).then_some((secret, public))
}

/// The public half, which ends the key.
fn public(rest: &[u8]) -> Option<[u8; 32]> {
    let bits = match rest.first()? {
        &PUBLIC_KEY => alone(PUBLIC_KEY, rest)?,
        _ => alone(BIT_STRING, alone(PUBLIC_KEY_EXPLICIT, rest)?)?,
    };
    // How many bits of the last byte are unused.
    bits.strip_prefix(&[0])?.try_into().ok()
}

/// The content of an element that has nothing behind it.
fn alone(tag: u8, der: &[u8]) -> Option<&[u8]> {
    element(tag, der)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(content, _)| content)
}

/// The content of an element with this tag, and the bytes behind it.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (&first, rest) = rest.split_first()?;
    // No key is longer than 127 bytes, except for its attributes.
    let (length, rest) = match (first, rest) {
        (0..=0x7f, rest) => (usize::from(first), rest),
        (0x81, [length, rest @ ..]) if *length > 0x7f => (usize::from(*length), rest),
        _ => return None,
    };
    rest.split_at_checked(length)
}
