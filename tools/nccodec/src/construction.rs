//! The codes of chunk files.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ncs_codec::rs::{Code, Error, Matrix};
use ncs_device::BackendChoice;
use ncs_device::portions::Work;
use ncs_gf::Kernels;

use crate::crew::Choice;
use crate::leopard::{Encoding, Leopard, Rebuilding};

/// How the code chunks of a file are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Construction {
    /// By a product with a matrix over GF(2^8)/0x11D.
    Matrix(Matrix),
    /// By a fast Fourier transform over GF(2^16)/0x1002D.
    Leopard,
}

impl Construction {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Matrix(Matrix::Cauchy),
        Self::Matrix(Matrix::VandBb),
        Self::Matrix(Matrix::VandJerasure),
        Self::Matrix(Matrix::IsalRs),
        Self::Leopard,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Matrix(matrix) => matrix.name(),
            Self::Leopard => "leopard",
        }
    }

    /// Who codes, if that can be: no GPU has the transform.
    pub(super) fn coders(self, choice: Choice) -> Result<Choice, crate::Error> {
        match (self, choice.backend) {
            (Self::Leopard, BackendChoice::Auto) => Ok(Choice::CPU),
            (Self::Leopard, BackendChoice::Cuda | BackendChoice::Hybrid) => {
                Err(crate::Error::CpuAlone(choice.backend.name()))
            }
            _ => Ok(choice),
        }
    }

    /// What the bytes of a piece are a multiple of: an element of the field.
    const fn unit(self) -> u32 {
        match self {
            Self::Matrix(_) => 1,
            Self::Leopard => 2,
        }
    }

    /// Whether pieces may have so many bytes.
    pub(super) const fn takes(self, piece_bytes: u32) -> bool {
        piece_bytes.is_multiple_of(self.unit())
    }

    /// Bytes of a piece where a stripe of k pieces has so many bytes of the file.
    pub(super) fn piece_of(self, native_bytes: usize, k: u16) -> usize {
        let unit = self.unit() as usize;
        native_bytes.div_ceil(k.into()).next_multiple_of(unit)
    }
}

impl Default for Construction {
    fn default() -> Self {
        Self::Matrix(Matrix::default())
    }
}

impl fmt::Display for Construction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Construction {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Self::ALL
            .into_iter()
            .find(|construction| construction.name() == text)
            .ok_or_else(|| Unknown(text.to_owned()))
    }
}

/// Error: the text names no construction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown matrix `{0}`: expected cauchy, vand-bb, vand-jerasure, isal-rs or leopard")]
pub struct Unknown(String);

/// The code of a set of chunk files.
#[derive(Debug, Clone)]
pub struct ChunkCode(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// With the rows of the code chunks.
    Matrix(Code, Arc<[u8]>),
    Leopard(Arc<Leopard>),
}

impl ChunkCode {
    /// The code with k native chunks and n in all, if there is one.
    pub fn new(construction: Construction, k: u16, n: u16) -> Result<Self, Error> {
        let (k, n) = (k.into(), n.into());
        Ok(Self(match construction {
            Construction::Matrix(matrix) => {
                let code = Code::new(matrix, k, n)?;
                let rows = code.parity_rows().flatten().copied().collect();
                Kind::Matrix(code, rows)
            }
            Construction::Leopard => {
                // It takes what a matrix takes.
                Code::new(Matrix::Cauchy, k, n)?;
                Kind::Leopard(Arc::new(Leopard::new(k, n)))
            }
        }))
    }

    /// What makes the code pieces of a stripe of its k native ones, of so many bytes each.
    pub fn encoding(&self, bytes: usize) -> Work {
        match &self.0 {
            Kind::Matrix(code, rows) => Work::Product {
                rows: Arc::clone(rows),
                n: code.k(),
                bytes,
            },
            Kind::Leopard(code) => Work::Cpu(Arc::new(Encoding {
                code: Arc::clone(code),
                bytes,
            })),
        }
    }
}

/// What rebuilds the native pieces of stripes. It keeps what the stripe before has needed, because
/// mostly the next one needs the same.
#[derive(Debug)]
pub struct Rebuilder {
    code: ChunkCode,
    plan: Option<Plan>,
}

/// What makes the native chunks that are not among those held.
#[derive(Debug)]
struct Plan {
    held: Vec<usize>,
    rows: Arc<[u8]>,
}

impl Rebuilder {
    /// For chunks of this code.
    pub fn new(code: ChunkCode) -> Self {
        Self { code, plan: None }
    }

    /// What makes the native pieces that are not there of the pieces of these k chunks, of so many
    /// bytes each.
    ///
    /// # Panics
    /// If these are not k different chunks of the code.
    pub fn rebuilding(&mut self, held: &[usize], bytes: usize) -> Work {
        match &self.code.0 {
            Kind::Matrix(code, _) => {
                let known = self.plan.take_if(|plan| plan.held == held);
                let plan = known.unwrap_or_else(|| Plan::new(code, held));
                Work::Product {
                    rows: Arc::clone(&self.plan.insert(plan).rows),
                    n: code.k(),
                    bytes,
                }
            }
            Kind::Leopard(code) => Work::Cpu(Arc::new(Rebuilding {
                code: Arc::clone(code),
                held: held.to_vec(),
                bytes,
            })),
        }
    }
}

impl Plan {
    fn new(code: &Code, held: &[usize]) -> Self {
        let wanted: Vec<usize> = (0..code.k())
            .filter(|index| !held.contains(index))
            .collect();
        let repair = code
            .repair(Kernels::detect(), held, &wanted)
            .expect("k different chunks of the code");
        Self {
            held: held.to_vec(),
            rows: repair.rows().flatten().copied().collect(),
        }
    }
}
