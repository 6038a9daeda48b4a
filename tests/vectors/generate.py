#!/usr/bin/env python3
"""Known answers for coefficient rows and coded blocks, computed without any of the program's code.

Digests are the first 16 bytes of SHAKE-256.

Writes rlnc.json beside itself. Needs nothing but Python. `tests/codecs.rs` reads the file.
"""

import hashlib
import json
import pathlib
import struct

POLYNOMIAL = 0x11D
KEY = 0x0123456789ABCDEF
GENERATION = 42


def multiply(a, b):
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= POLYNOMIAL
        b >>= 1
    return product


PRODUCTS = [bytes(multiply(c, byte) for byte in range(256)) for c in range(256)]


def philox4x32_10(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def coefficients(key, seed, generation, n):
    out, q = b"", 0
    while len(out) < n:
        counter = [q, seed, generation & 0xFFFFFFFF, generation >> 32]
        out += struct.pack("<4I", *philox4x32_10(counter, [key & 0xFFFFFFFF, key >> 32]))
        q += 1
    return out[:n]


def sparse(key, seed, generation, n, weight):
    """Returns a row with `weight` nonzero coefficients: Floyd's choice of places, a word per draw."""

    def words():
        q = 1 << 31
        while True:
            counter = [q, seed, generation & 0xFFFFFFFF, generation >> 32]
            yield from philox4x32_10(counter, [key & 0xFFFFFFFF, key >> 32])
            q += 1

    row, draws = bytearray(n), words()
    for last in range(n - min(weight, n), n):
        while True:
            word = next(draws)
            value, product = word >> 24, (word & 0xFFFFFF) * (last + 1)
            if value != 0 and product % (1 << 24) >= (1 << 24) % (last + 1):
                break
        place = product >> 24
        row[place if row[place] == 0 else last] = value
    return bytes(row)


def combine(row, blocks):
    total = 0
    for c, block in zip(row, blocks):
        total ^= int.from_bytes(block.translate(PRODUCTS[c]), "big")
    return total.to_bytes(len(blocks[0]), "big")


def encode(data, n, k, key, generation, seeds):
    padded = data + bytes(n * k - len(data))
    blocks = [padded[i * k : (i + 1) * k] for i in range(n)]
    return [(seed, combine(coefficients(key, seed, generation, n), blocks)) for seed in seeds]


def digest(data):
    return hashlib.shake_256(data).hexdigest(16)


def main():
    zero, ones = 0, 0xFFFFFFFF
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    philox = [([zero] * 4, [zero] * 2), ([ones] * 4, [ones] * 2), (pi[:4], pi[4:])]

    rows = []
    for key, generation, seed, n in [
        (KEY, GENERATION, 7, 128),
        (KEY, GENERATION, 0, 1),
        (KEY, GENERATION, 0xFFFFFFFF, 17),
        (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 1, 33),
        (0, 0, 0, 16),
        (KEY, 0x100000002, 3, 20),
    ]:
        row = coefficients(key, seed, generation, n)
        rows.append({"key": f"{key:016x}", "generation": generation, "seed": seed, "n": n, "row": row.hex()})

    sparse_rows = []
    for key, generation, seed, n, weight in [
        (KEY, GENERATION, 7, 128, 13),
        (KEY, GENERATION, 0xFFFFFFFF, 64, 13),
        (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 1, 33, 1),
        (0, 0, 0, 16, 40),
        (KEY, 0x100000002, 3, 1000, 500),
    ]:
        row = sparse(key, seed, generation, n, weight)
        answer = {"key": f"{key:016x}", "generation": generation, "seed": seed, "n": n, "weight": weight, "row": row.hex()}
        sparse_rows.append(answer)

    small = []
    for n, k, length, key, generation, seeds in [
        (1, 64, 64, KEY, GENERATION, [0, 1]),
        (3, 64, 130, 0, 0, [5, 6, 7, 8]),
        (5, 80, 400, KEY, GENERATION, [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]),
        (17, 64, 17 * 64 - 63, 0xDEADBEEF00000001, 3, list(range(17))),
    ]:
        data = hashlib.shake_256(b"ncserverd rlnc small %d" % n).digest(length)
        blocks = encode(data, n, k, key, generation, seeds)
        small.append(
            {
                "n": n,
                "k": k,
                "key": f"{key:016x}",
                "generation": generation,
                "data": data.hex(),
                "blocks": [{"seed": seed, "payload": payload.hex()} for seed, payload in blocks],
            }
        )

    n, k = 128, 4096
    data = hashlib.shake_256(b"ncserverd rlnc kat v1").digest(n * k)
    blocks = encode(data, n, k, KEY, GENERATION, range(n))
    large = {
        "n": n,
        "k": k,
        "key": f"{KEY:016x}",
        "generation": GENERATION,
        "data": "shake_256(b'ncserverd rlnc kat v1')",
        "data_prefix": data[:16].hex(),
        "data_digest": digest(data),
        "rows_digest": digest(b"".join(coefficients(KEY, seed, GENERATION, n) for seed in range(n))),
        "blocks_digest": digest(b"".join(payload for _, payload in blocks)),
        "blocks": [{"seed": seed, "prefix": payload[:16].hex(), "digest": digest(payload)} for seed, payload in blocks],
    }

    answers = {
        "philox4x32_10": [
            {"counter": list(counter), "key": list(key), "output": philox4x32_10(counter, key)} for counter, key in philox
        ],
        "rows": rows,
        "sparse_rows": sparse_rows,
        "small": small,
        "large": large,
    }
    path = pathlib.Path(__file__).with_name("rlnc.json")
    path.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
