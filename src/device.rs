//! Back ends that combine blocks: the crate `ncs-device`, and the metrics of a device.

mod metrics;

pub use metrics::Metrics;
pub use ncs_device::*;
