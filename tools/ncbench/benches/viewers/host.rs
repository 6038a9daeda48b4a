//! The machine that figures are of, and our programs on its processors.

use std::fmt;
use std::fs;
use std::process::Command;

use nctest::program::beside as program;
use serde::{Deserialize, Serialize};

/// What figures depend on, in the words of the system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Host {
    processor: String,
    processors: usize,
    system: String,
    /// Name and driver of each GPU.
    gpus: Vec<String>,
}

impl Host {
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name| {
            let value = cpuinfo
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(field, _)| field.trim() == name);
            value.map_or("unknown", |(_, value)| value.trim())
        };
        let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: format!(
                "{}, family {}, model {}",
                field("model name"),
                field("cpu family"),
                field("model")
            ),
            processors: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            system: format!("Linux {}", system.trim()),
            gpus: ask_gpus("name,driver_version"),
        }
    }

    pub(crate) fn has_gpu(&self) -> bool {
        !self.gpus.is_empty()
    }
}

/// A line for each GPU with these fields of `nvidia-smi`; none where there is no GPU.
pub(crate) fn ask_gpus(fields: &str) -> Vec<String> {
    let query = [
        &format!("--query-gpu={fields}"),
        "--format=csv,noheader,nounits",
    ];
    let output = Command::new("nvidia-smi")
        .args(query)
        .output()
        .ok()
        .filter(|output| output.status.success());
    let lines = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    lines.lines().map(|line| line.trim().to_owned()).collect()
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} processors ({}), {}",
            self.processors, self.processor, self.system
        )?;
        for gpu in &self.gpus {
            write!(f, ", {gpu}")?;
        }
        Ok(())
    }
}

/// One of our programs, on these processors.
pub(crate) fn on(cores: Option<&str>, name: &str) -> Command {
    let Some(cores) = cores else {
        return Command::new(program(name));
    };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", cores]).arg(program(name));
    command
}
