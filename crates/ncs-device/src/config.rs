//! Section `[device]` of the configuration.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use ncs_gf::Isa;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::kernel::KernelChoice;

/// Section `[device]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where segments are held and combined.
    pub backend: BackendChoice,
    /// Which GPUs take part.
    pub gpus: Gpus,
    /// The kernel that combines blocks.
    pub kernel: KernelChoice,
    /// The instruction set of the CPU's `simd` kernel.
    pub cpu_isa: IsaChoice,
    /// Threads that combine on the CPU.
    pub cpu_threads: Threads,
    /// Capacity of each of the device's three queues: batches, loads, and calls to decode. When one
    /// is full its callers wait.
    pub queue_batches: NonZeroU16,
    /// How long a GPU may complete none of the work under way before it is given up.
    #[serde(with = "duration")]
    pub hang_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            gpus: Gpus::default(),
            kernel: KernelChoice::Default,
            cpu_isa: IsaChoice::Auto,
            cpu_threads: Threads::Auto,
            queue_batches: NonZeroU16::new(4).expect("4 is not zero"),
            hang_timeout: Duration::from_secs(10),
        }
    }
}

/// Durations as texts such as `250ms` or `2s`.
mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map_err(|error| {
            D::Error::custom(format!(
                "`{text}` is not a duration such as \"250ms\" or \"2s\": {error}"
            ))
        })
    }
}

/// `device.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The GPUs if they can be used, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPUs. Without one the start fails.
    Cuda,
    /// The GPUs and the CPU, which share every batch. Without a GPU the start fails.
    Hybrid,
}

impl BackendChoice {
    /// Its name in the configuration and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Hybrid => "hybrid",
        }
    }
}

/// `device.gpus`: a list of GPU numbers in the driver's order, or `"all"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// All GPUs that the driver shows.
    All,
    /// The GPUs with these numbers.
    List(Vec<u16>),
}

impl Default for Gpus {
    fn default() -> Self {
        Self::List(vec![0])
    }
}

impl Gpus {
    /// Accepts at least one number, without repetition.
    fn list(list: Vec<u16>) -> Result<Self, NotGpus> {
        let is_valid = (1..=GPUS_MAX).contains(&list.len())
            && list
                .iter()
                .enumerate()
                .all(|(i, gpu)| !list[..i].contains(gpu));
        if is_valid {
            Ok(Self::List(list))
        } else {
            Err(NotGpus)
        }
    }
}

/// A value that names no GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected \"all\" or a list of 1 to {GPUS_MAX} different GPU numbers")]
pub struct NotGpus;

impl FromStr for Gpus {
    type Err = NotGpus;

    /// Parses `all`, or numbers separated by commas, as in an environment variable.
    fn from_str(text: &str) -> Result<Self, NotGpus> {
        if text == "all" {
            return Ok(Self::All);
        }
        let numbers = text
            .split(',')
            .map(|number| number.trim().parse().map_err(|_| NotGpus));
        Self::list(numbers.collect::<Result<_, _>>()?)
    }
}

impl Serialize for Gpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::List(list) => list.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListOrText;
        impl<'de> Visitor<'de> for ListOrText {
            type Value = Gpus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"all\" or a list of numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Gpus, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Gpus, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Gpus, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Gpus, A::Error> {
                let mut list = Vec::new();
                while let Some(number) = sequence.next_element()? {
                    list.push(number);
                    if list.len() > GPUS_MAX {
                        break;
                    }
                }
                Gpus::list(list).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(ListOrText)
    }
}

/// `device.cpu_isa`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsaChoice {
    /// The fastest that the processor supports.
    #[default]
    Auto,
    /// [`Isa::Scalar`].
    Scalar,
    /// [`Isa::Ssse3`].
    Ssse3,
    /// [`Isa::Avx2`].
    Avx2,
    /// [`Isa::Avx512`].
    Avx512,
    /// [`Isa::Gfni`].
    Gfni,
}

impl IsaChoice {
    /// The instruction set; `None` for `auto`.
    pub const fn isa(self) -> Option<Isa> {
        match self {
            Self::Auto => None,
            Self::Scalar => Some(Isa::Scalar),
            Self::Ssse3 => Some(Isa::Ssse3),
            Self::Avx2 => Some(Isa::Avx2),
            Self::Avx512 => Some(Isa::Avx512),
            Self::Gfni => Some(Isa::Gfni),
        }
    }
}

/// `device.cpu_threads`: a number, or `"auto"` for one thread per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// One thread for each core that this process may use.
    #[default]
    Auto,
    /// This many threads.
    Count(NonZeroU16),
}

impl Threads {
    /// The number of threads on this machine.
    pub fn count(self) -> usize {
        match self {
            Self::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Self::Count(count) => usize::from(count.get()),
        }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Threads {
    type Err = NotThreads;

    fn from_str(text: &str) -> Result<Self, NotThreads> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .ok()
                .filter(|count| *count <= THREADS_MAX)
                .map(Self::Count)
                .ok_or(NotThreads),
        }
    }
}

/// A text that is not a number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\" or a number of threads from 1 to {THREADS_MAX}")]
pub struct NotThreads;

impl Serialize for Threads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u16(count.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Threads;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"auto\" or a number from 1 to {THREADS_MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Threads, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Threads, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Threads, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

const THREADS_MAX: NonZeroU16 = NonZeroU16::new(1024).expect("1024 is not zero");
const GPUS_MAX: usize = 16;
