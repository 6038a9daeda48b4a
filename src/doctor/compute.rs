//! Checks of the CPU, and of the device that the configuration selects.

use std::path::Path;

use bytesize::ByteSize;

use super::Check;
use crate::config::Config;
use crate::device::{self, BackendChoice, Device, Gpu, Gpus, Memory, Threads};
use crate::gf::{Isa, Kernels};
use crate::server::workload;
use crate::store::Portion;

/// Instruction set and cores.
pub(super) fn processor(config: &device::Config) -> Check {
    judge_processor(Kernels::detect().isa(), Threads::Auto.count(), config)
}

fn judge_processor(fastest: Isa, cores: usize, config: &device::Config) -> Check {
    let name = "processor";
    let found = format!("{cores} usable cores; the fastest instruction set is {fastest}");
    if let Some(chosen) = config.cpu_isa.isa().filter(|chosen| *chosen != fastest) {
        let found = format!("{found}, but `device.cpu_isa` selects {chosen}");
        return Check::warn(name, found, "set device.cpu_isa = \"auto\"");
    }
    if fastest == Isa::Scalar {
        let found = format!("{found}: plain Rust, many times slower than SIMD");
        return Check::warn(
            name,
            found,
            "use an x86-64 processor with SSSE3 or later, or a GPU, to serve more than a few peers",
        );
    }
    Check::ok(name, found)
}

/// Opens the device as the server would.
pub(super) fn device(config: &Config) -> Vec<Check> {
    let open =
        |config: &device::Config, workload| Device::open_for(config, &workload, device::Unrecorded);
    let (choice, work) = (&config.device, workload(config));
    match open(choice, work) {
        Err(error) => {
            vec![Check::fail(
                DEVICE,
                error.to_string(),
                "set device.backend = \"auto\" or \"cpu\", or fix the cause",
            )]
        }
        Ok((device, _thread)) => match device.memory() {
            Some(memory) => gpus(&choice.gpus)
                .into_iter()
                .chain([
                    Check::ok(
                        DEVICE,
                        format!("{} with the kernel {}", device.backend(), device.kernel()),
                    ),
                    judge_room(config.store.device_bytes, memory),
                ])
                .collect(),
            None => {
                let found = format!(
                    "the CPU with the kernel {}, threads: {}",
                    device.kernel(),
                    choice.cpu_threads.count()
                );
                let why = (choice.backend == BackendChoice::Auto).then(|| {
                    open(
                        &device::Config {
                            backend: BackendChoice::Cuda,
                            ..choice.clone()
                        },
                        work,
                    )
                    .err()
                });
                let has_node = DRIVER.iter().any(|path| Path::new(path).exists());
                vec![judge_cpu(
                    found,
                    why.flatten().map(|error| error.reason()).as_deref(),
                    has_node,
                )]
            }
        },
    }
}

/// The CPU codes; `why` tells why no GPU does, if one was looked for.
fn judge_cpu(found: String, why: Option<&str>, has_node: bool) -> Check {
    match why {
        None => Check::ok(DEVICE, found),
        Some(why) => {
            let found = format!("{found}; no GPU: {why}");
            match has_node {
                false => Check::ok(DEVICE, found),
                true => Check::warn(
                    DEVICE,
                    found,
                    "see docs/operating.md, \"With a GPU\"; or set device.backend = \"cpu\"",
                ),
            }
        }
    }
}

/// Describes each card.
fn gpus(gpus: &Gpus) -> Vec<Check> {
    let ordinals = match gpus {
        Gpus::All => (0..u16::MAX).collect(),
        Gpus::List(list) => list.clone(),
    };
    let cards = ordinals
        .into_iter()
        .map_while(|ordinal| Some((ordinal, device::describe(ordinal).ok()?)));
    let describe = |(ordinal, card): (u16, Gpu)| {
        let (major, minor) = card.compute_capability;
        let found = format!(
            "number {ordinal}: {}, compute capability {major}.{minor}, driver {}, {}",
            card.name,
            card.driver,
            ByteSize(card.memory_bytes)
        );
        Check::ok("GPU", found)
    };
    cards.map(describe).collect()
}

fn judge_room(portion: Portion, memory: Memory) -> Check {
    let (name, wanted) = ("GPU memory", portion.of(memory.total));
    let found = format!(
        "{} of {} free; store.device_bytes = {portion} is {}",
        ByteSize(memory.free),
        ByteSize(memory.total),
        ByteSize(wanted)
    );
    if wanted <= memory.free {
        return Check::ok(name, found);
    }
    let fits = (memory.free / 10 * 9) >> 20;
    Check::warn(
        name,
        found,
        format!(
            "set store.device_bytes = \"{fits}MiB\", or stop other programs on the GPU (nvidia-smi)"
        ),
    )
}

const DEVICE: &str = "device";
/// With an NVIDIA driver, one of these exists.
const DRIVER: [&str; 2] = ["/dev/nvidiactl", "/proc/driver/nvidia/version"];

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_missing_gpu_is_a_fault_only_where_one_is_asked_for() {
        let text = "the NVIDIA driver finds no GPU";
        let check = judge_cpu("the CPU".into(), Some(text), false);
        assert_eq!(
            (check.verdict, check.found.as_str()),
            (
                Verdict::Ok,
                "the CPU; no GPU: the NVIDIA driver finds no GPU"
            )
        );
        assert_eq!(
            judge_cpu("the CPU".into(), Some(text), true).verdict,
            Verdict::Warn
        );
        let mut config = Config::default();
        config.device.gpus = Gpus::List(vec![15]);
        config.device.backend = BackendChoice::Cuda;
        assert_eq!(
            device(&config)[0].verdict,
            Verdict::Fail,
            "no host has 16 GPUs"
        );
        config.device.backend = BackendChoice::Cpu;
        assert_eq!(device(&config)[0].verdict, Verdict::Ok);
    }

    #[test]
    fn copies_have_to_fit_the_card() {
        let memory = Memory {
            total: 100 << 30,
            free: 70 << 30,
        };
        assert_eq!(
            judge_room(Portion::Percent(60), memory).verdict,
            Verdict::Ok
        );
        let check = judge_room(Portion::Percent(80), memory);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(
            check
                .to_string()
                .contains("store.device_bytes = \"64512MiB\""),
            "{check}"
        );
    }

    #[test]
    fn a_slow_instruction_set_is_told() {
        let config = device::Config::default();
        assert_eq!(judge_processor(Isa::Gfni, 8, &config).verdict, Verdict::Ok);
        assert_eq!(
            judge_processor(Isa::Scalar, 8, &config).verdict,
            Verdict::Warn
        );
        let ssse3 = device::Config {
            cpu_isa: device::IsaChoice::Ssse3,
            ..config
        };
        assert!(
            judge_processor(Isa::Gfni, 8, &ssse3)
                .to_string()
                .contains("device.cpu_isa = \"auto\"")
        );
    }
}
