//! The compiled kernels, embedded: `kernels/*.fatbin` of this crate. `kernels/build.py` of the
//! repository makes them from the `.cu` files beside it, which `kernels/sources` links to: the
//! package of this crate contains them, too.

use std::hash::{Hash, Hasher};

/// Bytes aligned so that the driver can read them as words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(pub T);

/// A compiled file that another crate has embedded. Names are unique.
#[derive(Debug)]
pub struct Compiled {
    pub name: &'static str,
    pub bytes: &'static Aligned<[u8]>,
}

impl PartialEq for Compiled {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Compiled {}

impl Hash for Compiled {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

macro_rules! images {
    ($($(#[$attribute:meta])* $variant:ident = $file:literal,)*) => {
        /// A compiled file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Image {
            $($(#[$attribute])* $variant,)*
            /// A file of another crate.
            Other(&'static Compiled),
        }

        impl Image {
            #[cfg(test)]
            pub const ALL: &[Self] = &[$($(#[$attribute])* Self::$variant),*];

            pub fn bytes(self) -> &'static [u8] {
                match self {
                    $($(#[$attribute])* Self::$variant => {
                        static BYTES: &Aligned<[u8]> =
                            &Aligned(*include_bytes!(concat!(
                                env!("CARGO_MANIFEST_DIR"),
                                "/kernels/",
                                $file,
                                ".fatbin"
                            )));
                        &BYTES.0
                    })*
                    Self::Other(compiled) => &compiled.bytes.0,
                }
            }

            #[cfg(test)]
            fn source(self) -> (&'static str, &'static str) {
                match self {
                    $($(#[$attribute])* Self::$variant => (
                        concat!($file, ".cu"),
                        include_str!(concat!(
                            env!("CARGO_MANIFEST_DIR"),
                            "/kernels/sources/",
                            $file,
                            ".cu"
                        )),
                    ),)*
                    Self::Other(_) => panic!("another crate has its source"),
                }
            }
        }
    };
}

images! {
    Rows = "rows",
    Forms = "forms",
    Table = "table",
    Tensor = "tensor",
    Bitsliced = "bitsliced",
    Prmt = "prmt",
    Product = "product",
    Invert = "invert",
    Wide = "wide",
    Replay = "replay",
    Stripes = "stripes",
    ReedSolomon = "rs",
    Gfq = "gfq",
    Hash = "hash",
    #[cfg(test)]
    Mp = "mp",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;

    macro_rules! kernels {
        ($file:literal) => {
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/kernels/sources/",
                $file
            ))
        };
    }

    const SOURCES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/SOURCES"));

    /// Needs no compiler: the embedded files were made from the sources in the tree.
    /// `kernels/build.py --check` compiles them.
    #[test]
    fn images_were_compiled_from_these_sources() {
        for image in Image::ALL {
            let (name, source) = image.source();
            let headers = [
                abi::HEADER,
                kernels!("nc_common.cuh"),
                kernels!("nc_bits.cuh"),
                kernels!("nc_carry.cuh"),
                kernels!("nc_mp.cuh"),
            ];
            let text = headers.concat() + source;
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            let digest: String = digest
                .as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let line = SOURCES
                .lines()
                .find(|line| line.ends_with(&format!(" {name}")));
            assert_eq!(
                line,
                Some(format!("{digest} {name}").as_str()),
                "run kernels/build.py and commit what it makes"
            );
            assert!(image.bytes().len() > 1000);
        }
    }
}
