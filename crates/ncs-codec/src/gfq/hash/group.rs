//! The groups: their parameters, the origin of these, and the generators.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::thread;

use shake::Shake256;
use shake::digest::{ExtendableOutput, Update, XofReader};

use super::powers::{Exponent, Machine, Powers};
use crate::gfq::shape::Shape;
use crate::shape::HashGroup as Group;
use ncs_gf::gfq;
#[cfg(target_arch = "x86_64")]
use ncs_gf::montgomery::Several;
use ncs_gf::montgomery::{Multiplier, Portable, is_below, subtract};

impl Group {
    /// p, in limbs of 64 bits, the least significant first.
    pub fn modulus(self) -> &'static [u64] {
        &Parameters::of(self).p
    }

    /// The first generators, at least `count`, each a number below p in as many limbs. The first
    /// call derives them, once in a process, by a power modulo p each.
    ///
    /// # Panics
    /// If there are more than [`Shape::WORDS_MAX`].
    pub fn generators(self, count: usize) -> Arc<[Box<[u64]>]> {
        assert!(
            count <= usize::from(Shape::WORDS_MAX),
            "a block of {count} words"
        );
        Parameters::of(self).generators(self, count)
    }

    /// The product of the first generators, each to the power of its exponent: big-endian,
    /// [`Self::hash_bytes`] long.
    pub fn power(self, multiplier: Multiplier, exponents: &[Exponent]) -> Vec<u8> {
        bytes(&Parameters::of(self).fixed(self, multiplier, exponents))
    }

    /// The label from which generators are derived, followed by their numbers.
    pub(super) const fn generator_label(self) -> &'static str {
        match self {
            Self::P1024 => "g",
            Self::P2048 => "p2048g",
        }
    }
}

/// A group and its data kept in this process.
pub(super) struct Parameters {
    /// The modulus, in 64-bit limbs, the least significant first.
    pub(super) p: Box<[u64]>,
    /// The multipliers, the fastest first.
    machines: Vec<(Multiplier, Box<dyn Powers>)>,
    /// The first generators.
    generators: RwLock<Arc<[Box<[u64]>]>>,
}

impl Parameters {
    pub(super) fn of(group: Group) -> &'static Self {
        static P1024: LazyLock<Parameters> = LazyLock::new(|| Parameters::new(Group::P1024));
        static P2048: LazyLock<Parameters> = LazyLock::new(|| Parameters::new(Group::P2048));
        match group {
            Group::P1024 => &P1024,
            Group::P2048 => &P2048,
        }
    }

    fn new(group: Group) -> Self {
        let p: &'static [u64] = match group {
            Group::P1024 => &P1024,
            Group::P2048 => &P2048,
        };
        let machine = |multiplier| (multiplier, machine(multiplier, group, p));
        let machines = Multiplier::available().into_iter().map(machine).collect();
        Self {
            p: p.into(),
            machines,
            generators: RwLock::new(Arc::new([])),
        }
    }

    /// At least `count` generators.
    pub(super) fn generators(&self, group: Group, count: usize) -> Arc<[Box<[u64]>]> {
        let held = Arc::clone(
            &self
                .generators
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        );
        if held.len() >= count {
            return held;
        }
        // Whoever wants some meanwhile waits for these.
        let mut held = self
            .generators
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let first = held.len();
        let mut new = self.raise(
            &(first..count)
                .map(|index| base(group, index, 0, &self.p))
                .collect::<Vec<_>>(),
        );
        for (generator, index) in new.iter_mut().zip(first..) {
            // A base whose power is one is passed over: one in 2^257, so that no counter but 0 is
            // expected to be seen.
            let mut counter = 0;
            while generator[0] <= 1 && generator[1..].iter().all(|&limb| limb == 0) {
                counter += 1;
                *generator = self
                    .raise(&[base(group, index, counter, &self.p)])
                    .remove(0);
            }
        }
        *held = held.iter().cloned().chain(new).collect();
        Arc::clone(&held)
    }

    /// Raises bases to the power of (p - 1) / q, on all processors: this is done once in a process,
    /// while a caller waits.
    fn raise(&self, bases: &[Box<[u64]>]) -> Vec<Box<[u64]>> {
        let cofactor = self.cofactor();
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let each = bases.len().div_ceil(threads).next_multiple_of(8).max(8);
        thread::scope(|scope| {
            let raise = |part| self.machines[0].1.raise(part, &cofactor);
            // The first part is this thread's own: where there are no others none is started.
            let mut parts = bases.chunks(each);
            let own = parts.next();
            let others: Vec<_> = parts.map(|part| scope.spawn(move || raise(part))).collect();
            let others = others
                .into_iter()
                .flat_map(|part| part.join().expect("powers of numbers below p"));
            own.into_iter().flat_map(raise).chain(others).collect()
        })
    }

    /// The product of the first generators, each to the power of its exponent.
    pub(super) fn fixed(
        &self,
        group: Group,
        multiplier: Multiplier,
        exponents: &[Exponent],
    ) -> Box<[u64]> {
        self.machine(multiplier)
            .fixed(&|count| self.generators(group, count), exponents)
    }

    /// The product of the bases, each to the power of its exponent.
    pub(super) fn product(
        &self,
        multiplier: Multiplier,
        bases: &[Box<[u64]>],
        exponents: &[Exponent],
    ) -> Box<[u64]> {
        self.machine(multiplier).product(bases, exponents)
    }

    fn machine(&self, multiplier: Multiplier) -> &dyn Powers {
        let (_, machine) = self
            .machines
            .iter()
            .find(|(of, _)| *of == multiplier)
            .expect("one for each that there is");
        &**machine
    }

    /// (p - 1) / q, which is whole.
    fn cofactor(&self) -> Box<[u64]> {
        let (mut rest, bits) = (self.p.clone(), 64 * self.p.len());
        let mut quotient = vec![0; rest.len()];
        rest[0] -= 1;
        for shift in (0..=bits - gfq::BITS).rev() {
            let divisor = shifted(&gfq::Q, shift, rest.len());
            if !is_below(&rest, &divisor) {
                subtract(&mut rest, &divisor);
                quotient[shift / 64] |= 1 << (shift % 64);
            }
        }
        debug_assert!(rest.iter().all(|&limb| limb == 0), "q divides p - 1");
        quotient.into()
    }
}

/// Products of powers modulo a group's p by these instructions.
pub(super) fn machine(multiplier: Multiplier, group: Group, p: &[u64]) -> Box<dyn Powers> {
    match (multiplier, group) {
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Ifma(ifma), Group::P1024) => {
            Box::new(Machine::new(Several::<_, 20>::new(ifma, p)))
        }
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Ifma(ifma), Group::P2048) => {
            Box::new(Machine::new(Several::<_, 40>::new(ifma, p)))
        }
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Eight(eight), Group::P1024) => {
            Box::new(Machine::new(Several::<_, 20>::new(eight, p)))
        }
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Eight(eight), Group::P2048) => {
            Box::new(Machine::new(Several::<_, 40>::new(eight, p)))
        }
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Four(four), Group::P1024) => {
            Box::new(Machine::new(Several::<_, 20>::new(four, p)))
        }
        #[cfg(target_arch = "x86_64")]
        (Multiplier::Four(four), Group::P2048) => {
            Box::new(Machine::new(Several::<_, 40>::new(four, p)))
        }
        (Multiplier::Portable, Group::P1024) => Box::new(Machine::new(Portable::<16>::new(p))),
        (Multiplier::Portable, Group::P2048) => Box::new(Machine::new(Portable::<32>::new(p))),
    }
}

/// The number times 2^`shift`, in `limbs` limbs.
fn shifted(number: &[u64], shift: usize, limbs: usize) -> Vec<u64> {
    let (whole, bits) = (shift / 64, shift % 64);
    let limb = |index: Option<usize>| {
        index
            .and_then(|index| number.get(index))
            .copied()
            .unwrap_or(0)
    };
    let each = |index: usize| {
        let low = limb(index.checked_sub(whole)) << bits;
        let carried = if bits == 0 {
            0
        } else {
            limb(index.checked_sub(whole + 1)) >> (64 - bits)
        };
        low | carried
    };
    (0..limbs).map(each).collect()
}

/// `length` bytes for a label and a counter.
pub(super) fn derived(label: &str, counter: u32, length: usize) -> Vec<u8> {
    let mut message = format!("{PREFIX}|{label}|").into_bytes();
    message.extend(counter.to_be_bytes());
    shake_256(&message, length)
}

/// The first bytes of SHAKE256 of `message` (FIPS 202).
pub(crate) fn shake_256(message: &[u8], length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    let mut hasher = Shake256::default();
    hasher.update(message);
    hasher.finalize_xof().read(&mut out);
    out
}

/// The base of generator `index`: sixteen bytes more than p has, modulo p.
fn base(group: Group, index: usize, counter: u32, p: &[u64]) -> Box<[u64]> {
    let bytes = derived(
        &format!("{}{index}", group.generator_label()),
        counter,
        group.hash_bytes() + 16,
    );
    let mut rest = vec![0; p.len()];
    for byte in bytes {
        for bit in (0..8).rev() {
            let mut carry = u64::from(byte >> bit & 1);
            for limb in &mut rest {
                let top = *limb >> 63;
                *limb = *limb << 1 | carry;
                carry = top;
            }
            if carry == 1 || !is_below(&rest, p) {
                subtract(&mut rest, p);
            }
        }
    }
    rest.into()
}

/// The limbs of big-endian bytes, the least significant first.
pub(super) fn limbs(bytes: &[u8]) -> Box<[u64]> {
    bytes
        .as_rchunks()
        .1
        .iter()
        .rev()
        .map(|bytes| u64::from_be_bytes(*bytes))
        .collect()
}

/// The bytes of limbs, big-endian.
pub(super) fn bytes(limbs: &[u64]) -> Vec<u8> {
    limbs
        .iter()
        .rev()
        .flat_map(|limb| limb.to_be_bytes())
        .collect()
}

/// The first words of every derivation.
const PREFIX: &str = "ncserverd HHF parameters v1";
/// With counter 513 of the label "p".
const P1024: [u64; 16] = [
    0xe3a7_6cce_5329_a199,
    0xd87c_d3f6_e18d_a30f,
    0xc14a_f722_86e0_ca8b,
    0xcf6d_17e3_588b_31cb,
    0x6be6_3e1d_15e1_6361,
    0x44a9_59ec_df07_d385,
    0xaed7_52ea_8c5c_fa75,
    0x9127_0285_d2b4_90c5,
    0x53dd_984a_0132_7499,
    0x5664_7d2f_490d_ec98,
    0xfe52_b5bd_9b51_2469,
    0x3078_fbaa_96a4_332f,
    0x133c_40b5_d086_c912,
    0x75d4_3efa_ff59_3bdd,
    0x1e39_5abc_c106_dd24,
    0xdf68_1c33_b839_29db,
];
/// With counter 1307 of the label "p2048".
const P2048: [u64; 32] = [
    0x6c88_738e_5319_2277,
    0xdcea_834b_24e8_8e0e,
    0x3c3e_d5c0_f4b8_b327,
    0x76cb_5294_1ea8_bd36,
    0x42f6_42ce_c89f_915a,
    0x1e54_f8bd_e4e3_f2ba,
    0xe2c8_b07f_3cb0_64ae,
    0xfd48_3917_70e3_b86e,
    0xcca0_2ff6_32ad_2a1e,
    0x93ad_b548_00dc_ded1,
    0x9885_aabc_3b39_4538,
    0x6c8b_d57e_0c43_8bc3,
    0xc89d_27d0_b24a_ae9a,
    0x4173_0d55_bdfa_b2dc,
    0x6495_519b_1f10_1aca,
    0xaeac_2a6d_117d_99bb,
    0x892c_d425_6a8a_2d8c,
    0x508a_aa55_fa8f_87b7,
    0x2b33_0c39_693d_5dab,
    0x11ce_ea70_edbd_a911,
    0x4b50_4652_5df0_d12b,
    0xb630_989f_bf60_1958,
    0xe575_e929_35c2_6ed0,
    0x28ef_8ccf_aa3a_0d4c,
    0x3809_420e_a897_31c0,
    0x875b_8efa_81c2_a29d,
    0x59c8_120b_e452_61d4,
    0x168b_355f_8189_676b,
    0x4781_09dc_796c_5e4c,
    0x81cd_8e96_ac74_ab9f,
    0x7755_fca2_694e_a248,
    0xa943_db05_4391_692e,
];
