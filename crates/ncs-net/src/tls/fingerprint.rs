//! SHA-256 of a certificate, which a peer pins if no authority has signed the server's certificate.

use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of this certificate.
    pub fn of(certificate: &rustls::pki_types::CertificateDer<'_>) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, certificate).as_ref());
        Self(bytes)
    }

    /// A fingerprint received from elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    /// Parses 64 hexadecimal digits, also with the colons that `openssl x509 -fingerprint` prints.
    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b':').collect();
        if digits.len() != 64 {
            return Err(ParseFingerprintError);
        }
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = match pair {
                &[high, low] => digit(high)
                    .zip(digit(low))
                    .map(|(high, low)| high << 4 | low)
                    .ok_or(ParseFingerprintError)?,
                _ => return Err(ParseFingerprintError),
            };
        }
        Ok(Self(bytes))
    }
}

/// The text is not a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint must be 64 hexadecimal digits, with or without colons")]
pub struct ParseFingerprintError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_print_and_parse() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let fingerprint = Fingerprint::of(&b"abc".as_slice().into());
        assert_eq!(fingerprint.to_string(), of_abc);
        assert_eq!(of_abc.parse(), Ok(fingerprint));
        let colons: Vec<_> = of_abc
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect();
        assert_eq!(colons.join(":").parse(), Ok(fingerprint));
        for wrong in ["", "ba78", &"zz".repeat(32), &"é".repeat(32)] {
            assert_eq!(
                wrong.parse::<Fingerprint>(),
                Err(ParseFingerprintError),
                "{wrong}"
            );
        }
    }
}
