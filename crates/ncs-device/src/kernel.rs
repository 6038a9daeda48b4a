//! The names of kernels in the configuration, in metrics and in measurements.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A kernel by name. `docs/kernels.md` describes each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$doc])* $variant,)*
        }

        impl Kernel {
            /// Every kernel.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

kernels! {
    /// Vector instructions over packed bytes. Only the CPU has it.
    Simd = "simd",
    /// Sums of logarithms and one table of powers, over segments held as logarithms. The default on
    /// a GPU; the CPU's version is its oracle.
    Table = "table",
    /// A matrix product over GF(2) on the 1-bit tensor cores of Hopper.
    Tensor = "tensor",
    /// Bit planes, and tables of all sums of eight of them.
    Bitsliced = "bitsliced",
    /// Products of three and two bits, looked up in registers by byte permutation.
    Prmt = "prmt",
    /// Products of one source byte with sixteen coefficients in one look-up.
    Product = "product",
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = UnknownKernel;

    fn from_str(text: &str) -> Result<Self, UnknownKernel> {
        Self::ALL
            .iter()
            .copied()
            .find(|kernel| kernel.name() == text)
            .ok_or_else(|| UnknownKernel(text.to_owned()))
    }
}

/// A name that no kernel has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kernel \"{0}\": expected \"default\", \"auto\", {list}", list = list())]
pub struct UnknownKernel(String);

fn list() -> String {
    Kernel::ALL
        .iter()
        .map(|kernel| format!("\"{kernel}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `device.kernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// `table` on a GPU, `simd` on the CPU.
    #[default]
    Default,
    /// The fastest on this machine, measured at the start.
    Auto,
    /// The named kernel.
    Named(Kernel),
}

impl KernelChoice {
    /// Whether the CPU has it.
    pub(super) const fn is_for_cpu(self) -> bool {
        matches!(
            self,
            Self::Default | Self::Auto | Self::Named(Kernel::Simd | Kernel::Table)
        )
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Auto => f.write_str("auto"),
            Self::Named(kernel) => kernel.fmt(f),
        }
    }
}

impl FromStr for KernelChoice {
    type Err = UnknownKernel;

    fn from_str(text: &str) -> Result<Self, UnknownKernel> {
        match text {
            "default" => Ok(Self::Default),
            "auto" => Ok(Self::Auto),
            name => name.parse().map(Self::Named),
        }
    }
}

impl Serialize for KernelChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KernelChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for &kernel in Kernel::ALL {
            assert_eq!(kernel.name().parse(), Ok(kernel));
            assert_eq!(kernel.name().parse(), Ok(KernelChoice::Named(kernel)));
        }
        assert_eq!("default".parse(), Ok(KernelChoice::Default));
        assert_eq!(
            KernelChoice::Auto.to_string().parse(),
            Ok(KernelChoice::Auto)
        );
        assert!(
            "tabel"
                .parse::<KernelChoice>()
                .unwrap_err()
                .to_string()
                .contains("\"table\"")
        );
    }
}
