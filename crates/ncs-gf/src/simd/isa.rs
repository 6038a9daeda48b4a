//! The names of the instruction sets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An instruction set with row operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Plain Rust with a table of products: the reference.
    Scalar,
    /// 128 bits, shuffles: WebAssembly, where the module is compiled with `simd128`.
    #[cfg(target_arch = "wasm32")]
    Simd128,
    /// 128 bits, shuffles.
    Ssse3,
    /// 256 bits, shuffles.
    Avx2,
    /// 512 bits, shuffles (AVX-512 F and BW).
    Avx512,
    /// 512 bits, one affine instruction for a product (AVX-512 F and BW, GFNI).
    Gfni,
}

impl Isa {
    /// All instruction sets, the fastest last.
    pub const ALL: [Self; if cfg!(target_arch = "wasm32") { 6 } else { 5 }] = [
        Self::Scalar,
        #[cfg(target_arch = "wasm32")]
        Self::Simd128,
        Self::Ssse3,
        Self::Avx2,
        Self::Avx512,
        Self::Gfni,
    ];

    /// The name in the configuration, in metrics and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "wasm32")]
            Self::Simd128 => "simd128",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Gfni => "gfni",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == text)
            .ok_or_else(|| UnknownIsa(text.to_owned()))
    }
}

/// Error: the text names no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{0}`: expected scalar, ssse3, avx2, avx512 or gfni")]
pub struct UnknownIsa(String);
