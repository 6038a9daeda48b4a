//! Inverters by name: those of back ends, and the paper's steps (`tools/kernels/invert_steps.cu`).

use ncserverd::device::abi::define;
use ncserverd::device::cuda::HOPPER;
use ncserverd::device::cuda::card::Card;
use ncserverd::device::cuda::inversion::Inverter;

use super::kernels::INVERT_STEPS;

/// The inverter of this name, `invert` for the fastest. `None` if the card cannot run it.
pub(super) fn named(name: &str, n: u32, count: u32, card: &Card) -> Option<Inverter> {
    let found = match name {
        "invert" => Inverter::fastest(n, count, card),
        "invert-shared" => Inverter::shared(n, card)?,
        "invert-global" => Inverter::in_global(),
        "invert-cluster" => Inverter::clustered(n),
        "invert-steps-serial" => stepwise("nc_invert_steps_serial", stepwise_bytes(n)),
        "invert-steps-ballot" => stepwise("nc_invert_steps_ballot", stepwise_bytes(n)),
        "invert-steps-min" => stepwise("nc_invert_steps_min", stepwise_bytes(n)),
        "invert-steps-global" => stepwise("nc_invert_steps_global", STEPS_FIXED_BYTES),
        "invert-steps-global-min" => stepwise("nc_invert_steps_global_min", STEPS_FIXED_BYTES),
        _ => return None,
    };
    let fits = found.shared_bytes <= card.shared_bytes
        && (found.cluster == 1 || card.capability == HOPPER);
    fits.then_some(found)
}

const fn stepwise(entry: &'static str, shared_bytes: u32) -> Inverter {
    Inverter {
        image: INVERT_STEPS,
        threads: define("NC_INVERT_STEPS_THREADS"),
        ..Inverter::new(entry, shared_bytes)
    }
}

const fn stepwise_bytes(n: u32) -> u32 {
    STEPS_FIXED_BYTES + n * n.next_multiple_of(16)
}

const STEPS_FIXED_BYTES: u32 = define("NC_INVERT_STEPS_FIXED_BYTES");
