//! Coding over GF(q) and homomorphic hashes on a GPU, if one is configured: the [`Arithmetic`] for
//! `codec::gfq`.
//!
//! A card is compared with the CPU before it is used: both encode, recode, rebuild, hash and check
//! a small generation. One card does all this work. Hashing a segment or checking a batch of blocks
//! takes it milliseconds, and the copies are short compared with that.

use std::num::NonZeroUsize;

use ncs_codec::gfq::{
    Arithmetic, Coded, Cores, Decode, Encode, Failed, Payload, Rebuilt, Recode, Shape, Vector,
    draw_factors, draw_rows,
};
use ncs_codec::hash::{Batch, Group, Hashes};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{BackendChoice, Config, Error, Gpus, cuda};

/// Opens a GPU by its number, and compares it with the CPU on a small example. Calls fail if the
/// card fails or has too little memory.
pub fn card(gpu: u16) -> Result<Box<dyn Arithmetic>, Error> {
    open_card(gpu, &cuda::HostMemory::default())
}

/// The same. The card writes blocks for memory of `host` there itself.
fn open_card(gpu: u16, host: &cuda::HostMemory) -> Result<Box<dyn Arithmetic>, Error> {
    let card = cuda::open_arithmetic(gpu, host)?;
    let results = |arithmetic: &dyn Arithmetic| {
        example(arithmetic).map_err(|Failed(reason)| Error::Lost(reason))
    };
    if results(card.as_ref())? == results(&Cores::new(NonZeroUsize::MIN))? {
        return Ok(card);
    }
    Err(Error::Lost(format!(
        "GPU {gpu} computes different results over GF(q) than the CPU"
    )))
}

/// Opens the first configured GPU. `None` if the configuration names the CPU, or if it leaves the
/// choice and no card can be used.
pub(super) fn open(
    config: &Config,
    host: &cuda::HostMemory,
) -> Result<Option<Box<dyn Arithmetic>>, Error> {
    let gpu = match &config.gpus {
        Gpus::All => 0,
        Gpus::List(list) => list.first().copied().unwrap_or(0),
    };
    match config.backend {
        BackendChoice::Cpu => Ok(None),
        BackendChoice::Cuda | BackendChoice::Hybrid => open_card(gpu, host).map(Some),
        BackendChoice::Auto => {
            let opened = open_card(gpu, host);
            Ok(opened
                .inspect_err(|error| {
                    tracing::info!("the CPU computes GF(q) and its hashes: {error}")
                })
                .ok())
        }
    }
}

/// The results of all operations on the example.
#[derive(Debug, PartialEq, Eq)]
struct Results {
    coded: Vec<u8>,
    vectors: Vec<u8>,
    recoded: Vec<u8>,
    rebuilt: Vec<Rebuilt>,
    source: Vec<u8>,
    hashes: Vec<u8>,
    holds: Vec<bool>,
}

/// Computes everything for a generation with a short block, in a shape that fills neither warps nor
/// thread blocks.
fn example(arithmetic: &dyn Arithmetic) -> Result<Results, Failed> {
    let shape = Shape::new(5, 35).expect("a shape");
    let mut rng = SmallRng::seed_from_u64(257);
    let mut source = vec![0; shape.source_bytes() - 40];
    rng.fill_bytes(&mut source);
    let rows = draw_rows(shape, shape.n(), &mut rng);
    let mut coded = vec![0; shape.n() * shape.payload_bytes()];
    arithmetic.encode(shape, &mut [Encode::new(shape, &source, &rows, &mut coded)])?;
    let block = |row: &[u32], payload: &[u8]| {
        let payload = Payload::parse(shape, payload.to_vec().into())
            .map_err(|error| Failed(error.to_string()))?;
        Ok(Coded {
            vector: Vector::Source(row.into()),
            payload,
        })
    };
    let blocks = rows
        .chunks_exact(shape.n())
        .zip(coded.chunks_exact(shape.payload_bytes()));
    let blocks = blocks
        .map(|(row, payload)| block(row, payload))
        .collect::<Result<Vec<_>, Failed>>()?;
    let mut held: Vec<&Coded> = blocks.iter().collect();

    let factors = draw_factors(held.len(), 2, &mut rng);
    let (mut vectors, mut recoded) = (
        vec![0; 2 * shape.recoded_vector_bytes()],
        vec![0; 2 * shape.payload_bytes()],
    );
    let recode = Recode {
        held: &held,
        rows: &factors,
        vectors: &mut vectors,
        payloads: &mut recoded,
    };
    arithmetic.recode(shape, &mut [recode])?;

    let plain: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
    let hashes = arithmetic.hash(Group::P1024, shape.words(), &plain)?;
    let signed =
        Hashes::signed(Group::P1024, shape, &hashes).map_err(|error| Failed(error.to_string()))?;
    let wrong = Coded {
        vector: blocks[0].vector.clone(),
        payload: blocks[1].payload.clone(),
    };
    let batches = [
        Batch::new(&signed, held.clone(), &mut rng),
        Batch::new(&signed, vec![&blocks[2], &wrong], &mut rng),
    ];
    let holds = arithmetic.holds(&batches)?;

    let mut out = vec![0; shape.source_bytes()];
    let mut rebuilt = arithmetic.decode(
        shape,
        &mut [Decode {
            blocks: &held,
            out: &mut out,
        }],
    )?;
    held[1] = &blocks[0];
    let mut nothing = vec![0; shape.source_bytes()];
    rebuilt.extend(arithmetic.decode(
        shape,
        &mut [Decode {
            blocks: &held,
            out: &mut nothing,
        }],
    )?);
    Ok(Results {
        coded,
        vectors,
        recoded,
        rebuilt,
        source: out,
        hashes,
        holds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_shows_each_outcome() {
        let results = example(&Cores::new(NonZeroUsize::MIN)).unwrap();
        assert_eq!(results.rebuilt, [Rebuilt::Whole, Rebuilt::Singular]);
        assert_eq!(results.holds, [true, false]);
        let mut source = vec![0; results.source.len() - 40];
        SmallRng::seed_from_u64(257).fill_bytes(&mut source);
        assert!(
            results.source.starts_with(&source),
            "what was coded is rebuilt"
        );
        assert_eq!(results, example(&Cores::all()).unwrap());
    }

    #[test]
    fn there_is_no_card_where_none_is_wanted_or_none_can_be_used() {
        let config = Config {
            backend: BackendChoice::Cpu,
            ..Config::default()
        };
        let open = |config: &Config| open(config, &cuda::HostMemory::default());
        assert!(open(&config).unwrap().is_none());
        // No host has a GPU of this number.
        let config = Config {
            gpus: Gpus::List(vec![u16::MAX]),
            ..Config::default()
        };
        assert!(open(&config).unwrap().is_none());
        let config = Config {
            backend: BackendChoice::Cuda,
            ..config
        };
        assert!(open(&config).is_err());
    }
}
