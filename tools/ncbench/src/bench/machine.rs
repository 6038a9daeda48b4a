//! Where and with what it was measured: the head of a record.

use std::fs;
use std::time::SystemTime;

use ncs_gf::Kernels;
use ncserverd::device::Threads;
use serde::Serialize;

use super::Options;

/// The facts that figures depend on. What the system does not tell is "unknown".
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    date: String,
    command: String,
    version: &'static str,
    /// Of the source that the program was built from, if the builder said so.
    commit: Option<&'static str>,
    build: &'static str,
    processor: String,
    cores: usize,
    device_threads: usize,
    instruction_sets: Vec<&'static str>,
    flags: Vec<String>,
    system: String,
    load: String,
}

impl Machine {
    pub(super) fn here(options: &Options) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let read = |path| {
            fs::read_to_string(path).map_or_else(|_| UNKNOWN.into(), |text| text.trim().to_owned())
        };
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        let flags = flags
            .split_whitespace()
            .filter(|flag| FLAGS.contains(flag))
            .map(str::to_owned);
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: options.command.clone(),
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("NCSERVERD_COMMIT"),
            build: if cfg!(debug_assertions) {
                "debug: figures mean nothing"
            } else {
                "release"
            },
            processor: processor(&cpuinfo),
            cores: Threads::Auto.count(),
            device_threads: options.threads.count(),
            instruction_sets: Kernels::available()
                .map(|kernels| kernels.isa().name())
                .collect(),
            flags: flags.collect(),
            system: format!(
                "{} {} {}",
                std::env::consts::OS,
                read("/proc/sys/kernel/osrelease"),
                std::env::consts::ARCH
            ),
            load: read("/proc/loadavg"),
        }
    }

    /// As lines of a record.
    pub(super) fn lines(&self) -> Vec<String> {
        let built = self.commit.map_or_else(
            || self.build.to_owned(),
            |commit| format!("commit {commit}, {}", self.build),
        );
        [
            ("ncserverd", format!("{} ({built})", self.version)),
            ("command", self.command.clone()),
            ("date", self.date.clone()),
            (
                "processor",
                format!("{}, cores: {}", self.processor, self.cores),
            ),
            ("flags", self.flags.join(" ")),
            ("instruction sets", self.instruction_sets.join(" ")),
            ("device threads", self.device_threads.to_string()),
            ("system", self.system.clone()),
            ("load at start", self.load.clone()),
        ]
        .map(|(name, value)| format!("# {name}: {value}"))
        .into()
    }
}

/// Model, and the numbers behind it: cloud processors share names.
fn processor(cpuinfo: &str) -> String {
    let get = |name| field(cpuinfo, name).unwrap_or_else(|| UNKNOWN.into());
    format!(
        "{} (family {}, model {}, stepping {})",
        get("model name"),
        get("cpu family"),
        get("model"),
        get("stepping")
    )
}

/// The first value of a field of `/proc/cpuinfo`.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields
        .find(|(field, _)| field.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// Those that kernels are written for or could be.
const FLAGS: [&str; 14] = [
    "ssse3",
    "sse4_1",
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vbmi",
    "avx512ifma",
    "gfni",
    "vpclmulqdq",
    "asimd",
    "sve",
];
const UNKNOWN: &str = "unknown";
