use quinn::ConnectionIdGenerator;

use super::super::ids::Owner;
use super::*;

/// Runs the program on a packet as the kernel does; a load behind its end returns 0.
fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    let (mut at, mut a, mut x) = (0, 0, 0);
    loop {
        let Instruction {
            code,
            then,
            otherwise,
            value,
        } = program[at];
        at += 1;
        let branch = |holds: bool| usize::from(if holds { then } else { otherwise });
        let octets = |count: usize| packet.get(value as usize..value as usize + count);
        let indexed = packet.get((x + value) as usize);
        match code {
            LOAD_OCTET => match octets(1) {
                Some(octets) => a = u32::from(octets[0]),
                None => return 0,
            },
            LOAD_WORD => match octets(4) {
                Some(octets) => a = u32::from_be_bytes(octets.try_into().unwrap()),
                None => return 0,
            },
            LOAD_INDEXED => match indexed {
                Some(octet) => a = u32::from(*octet),
                None => return 0,
            },
            LOAD_INDEX => x = value,
            ADD => a += value,
            JUMP_IF_AT_LEAST => at += branch(a >= value),
            MODULO => a %= value,
            JUMP => at += value as usize,
            JUMP_IF_EQUAL => at += branch(a == value),
            JUMP_IF_SET => at += branch(a & value != 0),
            RETURN => return a,
            _ => panic!("an instruction that no program has: {code:#x}"),
        }
    }
}

fn long(first: u8, version: u32, id: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(version.to_be_bytes());
    packet.push(id.len().try_into().unwrap());
    packet.extend(id);
    packet.resize(1200, 0xaa);
    packet
}

fn short(first: u8, id: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(id);
    packet.extend([0xaa; 30]);
    packet
}

/// How often each socket is chosen.
fn spread(sockets: u8, packets: impl Iterator<Item = Vec<u8>>) -> Vec<u32> {
    let program = program(&Plan::alone(sockets));
    let mut counts = vec![0; usize::from(sockets)];
    packets.for_each(|packet| counts[run(&program, &packet) as usize] += 1);
    counts
}

fn is_even(counts: &[u32]) -> bool {
    let mean = counts.iter().sum::<u32>() / u32::try_from(counts.len()).unwrap();
    counts
        .iter()
        .all(|count| (mean * 3 / 4..mean * 5 / 4).contains(count))
}

#[test]
fn our_ids_reach_their_worker_in_every_header() {
    for sockets in [2, 3, 4, 8, 16, 63, 64] {
        let program = program(&Plan::alone(sockets));
        for worker in 0..sockets {
            for process in [0, 1, 255] {
                let id = Owner { process, worker }.generate_cid();
                let expected = u32::from(worker);
                // Initial, 0-RTT, Handshake, and Retry of version 1, and another version.
                for first in [0xc0, 0xd3, 0xe1, 0xf0] {
                    assert_eq!(run(&program, &long(first, 1, &id)), expected);
                    assert_eq!(run(&program, &long(first, 0x6b33_43cf, &id)), expected);
                }
                // Short headers, with all values of the bits that are protected or greased.
                for first in [0x40, 0x5f, 0x7f, 0x00, 0x3f] {
                    assert_eq!(run(&program, &short(first, &id)), expected);
                }
            }
        }
    }
}

#[test]
fn ids_that_clients_choose_are_spread_evenly() {
    for sockets in [2, 3, 4, 7, 8, 16] {
        for length in [8, 12, 18, 20] {
            let first = |_| {
                let id: [u8; 20] = rand::random();
                long(0xc3, 1, &id[..length])
            };
            let counts = spread(sockets, (0..16_000).map(first));
            assert!(is_even(&counts), "{length} octets: {counts:?}");
        }
    }
}

/// A client repeats its first packet, and may send 0-RTT packets, before it knows our id.
#[test]
fn all_packets_to_an_id_that_a_client_chose_go_to_one_socket() {
    let program = program(&Plan::alone(5));
    for length in [8, 20] {
        let id: [u8; 20] = rand::random();
        let socket = run(&program, &long(0xc0, 1, &id[..length]));
        for first in [0xc1, 0xcf, 0xd0, 0xdf] {
            assert_eq!(run(&program, &long(first, 1, &id[..length])), socket);
        }
    }
}

#[test]
fn ids_of_a_process_with_more_workers_have_a_socket() {
    let old = |worker| {
        let id = Owner { process: 0, worker }.generate_cid();
        short(0x40, &id)
    };
    assert_eq!(spread(4, (0..64).map(old)), [16; 4]);
}

#[test]
fn short_packets_go_to_the_first_socket() {
    let program = program(&Plan::alone(4));
    for packet in [
        &[][..],
        &[0x40],
        &[0x40, 1, 2],
        &[0xc0, 0, 0, 0, 1],
        &[0xc0, 0, 0, 0, 1, 8, 3, 3],
        &[0xc0, 0, 0, 0, 1, 20, 3, 3, 3],
    ] {
        assert_eq!(run(&program, packet), 0, "{packet:?}");
    }
}

/// An upgrade: the new process, whichever half of the sockets it has, and the old one.
#[test]
fn each_process_keeps_its_connections_and_the_new_one_gets_new_clients() {
    for workers in [1, 2, 5, 64] {
        for process in [0, 1] {
            let other = 1 - process;
            let plan = Plan {
                workers,
                process,
                other: Some(other),
            };
            let program = program(&plan);
            let socket = |process: u8, worker: u8| u32::from(process * workers + worker);
            for worker in 0..workers {
                for process in [process, other] {
                    let id = Owner { process, worker }.generate_cid();
                    let expected = socket(process, worker);
                    assert_eq!(run(&program, &short(0x40, &id)), expected);
                    assert_eq!(run(&program, &long(0xe0, 1, &id)), expected);
                }
                // An id of neither, and one of a worker that the other process does not have.
                for owner in [
                    Owner { process: 7, worker },
                    Owner {
                        process: other,
                        worker: worker + workers,
                    },
                ] {
                    let id = owner.clone().generate_cid();
                    assert_eq!(
                        run(&program, &short(0x40, &id)),
                        socket(process, owner.worker % workers)
                    );
                }
            }
            for length in [8, 12, 20] {
                let to_other = (0..16_000)
                    .map(|_| {
                        let id: [u8; 20] = rand::random();
                        run(&program, &long(0xc3, 1, &id[..length]))
                    })
                    .filter(|chosen| u8::try_from(*chosen).unwrap() / workers == other)
                    .count();
                // With 64 workers two of them are expected among those of eight octets.
                let most = if length == 8 { 12 } else { 0 };
                assert!(to_other <= most, "{length} octets: {to_other}");
            }
            let alone = super::program(&Plan {
                other: None,
                ..plan
            });
            for worker in 0..workers {
                let id = Owner {
                    process: other,
                    worker,
                }
                .generate_cid();
                assert_eq!(
                    run(&alone, &short(0x40, &id)),
                    socket(process, worker),
                    "the one that is left resets them"
                );
            }
        }
    }
}
