# The recipes that CI runs, for use by hand. `make check test` before a review.

CARGO ?= cargo
RULES := deploy/prometheus
# Has benches take the ISA-L of a folder, not that of the system.
LATER_ISAL = $(if $(ISAL),LD_LIBRARY_PATH=$(ISAL))
# What the configurations below deploy/ are tried with.
NCSERVERD ?= $(or $(CARGO_TARGET_DIR),target)/release/ncserverd

.PHONY: all check format lint docs deny check-deploy check-image kernels check-kernels test wasm \
	web embed-web test-web test-web-paths bench-web \
	proofs crowds sanitize valgrind masked short-sanitize short-valgrind short-masked bench \
	bench-peers bench-rs bench-hash bench-paths bench-fair bench-sharing \
	bench-swarms bench-fleets bench-servers bench-handshakes bench-refusals bench-attacks \
	bench-recovery bench-soak bench-viewers bench-abr bench-live bench-overload smoke-overload \
	bench-profile bench-files bench-many smoke smoke-abr kills nodes outages outages-bundle mixed \
	record-exchange check-aarch64 check-fuzz fuzz gpu-bundle circles package dependencies screenshots

all: check test

# Everything that needs no test run.
check: format circles package dependencies lint docs check-deploy

# As rustfmt's defaults have it, and no line of Rust longer than 100 columns where rustfmt does not
# look: in comments, strings and macros.
format:
	$(CARGO) fmt --all --check
	python3 tools/lines.py

# Checks that no modules of a crate import each other in a circle; in the crates without circles of
# files, no files either.
circles:
	python3 tools/circles.py
	python3 tools/circles.py --files crates/ncs-gf/src crates/ncs-codec/src crates/ncs-proto/src tools/nccodec/src

# Checks that the packages of the published crates contain what their code includes.
package:
	CARGO="$(CARGO)" tools/check-packages.py

# With the benches beside other libraries, which need these libraries only to be linked; then the
# crates that have features, without them.
lint:
	$(CARGO) clippy --locked --release --workspace --all-targets --features bench-peers -- -D warnings
	$(CARGO) clippy --locked --release --package ncs-device --package ncpeer --all-targets -- -D warnings

# For those who work on the crate: private items are shown, and may be linked to. And that what the
# documents link to is there.
docs:
	python3 tools/links.py
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
		$(CARGO) doc --locked --release --workspace --no-deps --document-private-items --lib

# The part of deny.toml that needs no database: licences, banned crates, sources.
dependencies:
	CARGO="$(CARGO)" tools/check-dependencies.py

# Advisories, licences and doubled dependencies. Needs cargo-deny and its advisory database.
deny:
	cargo deny check

# Tests alert rules, also against recordings, the systemd unit, and every configuration of a
# container or a cluster; renders the chart, and plays the files of compose. Needs promtool, systemd,
# openssl and python3-yaml; for the fleet NATS_SERVER=$(tools/nats.sh), and for the chart
# HELM=$(tools/helm.sh).
check-deploy:
	promtool check config $(RULES)/prometheus.yml $(RULES)/compose.yml $(RULES)/fleet.yml
	promtool check rules $(RULES)/rules.yml
	promtool test rules $(RULES)/rules_test.yml
	$(RULES)/check-alerts.py
	deploy/check-unit.sh
	test -x $(NCSERVERD) || $(CARGO) build --locked --release --bins
	deploy/check-configs.py $(NCSERVERD)

# The steps of the Dockerfile in a clean root. Needs root and debootstrap; minutes.
check-image:
	deploy/check-image.sh

# Compiles GPU kernels whose sources have changed. The first run fetches NVIDIA's compiler, 100 MB.
kernels:
	python3 kernels/build.py

# That the compiled kernels in the tree are what their sources make.
check-kernels:
	python3 kernels/build.py --check

test:
	$(CARGO) test --locked --release --no-fail-fast

# Runs the fields, the codes and the protocol as WebAssembly, without and with vector instructions:
# tests of the fields, a fetch with each code, the protocol's examples. Needs node, and
# rustup's target wasm32-unknown-unknown or Debian's rustc-web, cargo-web, rust-web-src and lld-19.
wasm:
	CARGO="$(CARGO)" tools/wasm/run.sh

# The npm package of a peer for web pages: crates/ncs-web as WebAssembly, and TypeScript. As above,
# and npm.
web:
	CARGO="$(CARGO)" web/build.sh

# Puts it into assets/web, from where it becomes part of the program, for the pages of `web.listen`
# and of the demo.
embed-web: web
	web/embed.py

# Tries it in Chromium, and the element in Firefox, against servers through loss; and compares the
# copy in assets/web.
test-web: web
	web/embed.py --check
	test -x $(NCSERVERD) || $(CARGO) build --locked --release --bins
	NCSERVERD=$(abspath $(NCSERVERD)) node web/test/run.mjs

# Plays in Chromium and through `ncpeer gateway` on paths under each condition and each pair of
# them: bursts of loss, jitter, packets out of order, rates and addresses that change, a minute
# without network. Half an hour.
test-web-paths: web
	test -x $(NCSERVERD) || $(CARGO) build --locked --release --bins
	NCSERVERD=$(abspath $(NCSERVERD)) node web/test/run.mjs --paths

# Decoding as WebAssembly in node beside the same code natively, in turn. Needs what `make wasm`
# needs.
bench-web:
	CARGO="$(CARGO)" tools/wasm/bench.sh

# Ten thousand changes of one bit in blocks over the prime field and in their hashes, all of which
# are found, and a hundred thousand right blocks, of which all pass. `PACKAGES=` takes what `make
# test` has built, which has other features than ncs-codec by itself.
PACKAGES ?= --package ncs-codec
proofs:
	$(CARGO) test --locked --release $(PACKAGES) --lib -- --ignored --nocapture gfq::tests

# The admission of newcomers with ten thousand simulated crowds and servers, by the rules of the
# server and, for comparison, by a door that is open or shut; a minute or two.
crowds:
	$(CARGO) test --locked --release --package ncs-proto --test intake -- --ignored --nocapture

# Tests the arithmetic and its users under AddressSanitizer, under valgrind, and on emulated
# processors that lack instruction sets, which needs qemu-x86_64 (Debian: qemu-user).
sanitize valgrind masked:
	CARGO="$(CARGO)" tests/arithmetic.sh $@

# The same with the tests that CI has time for. The script lists them.
short-sanitize short-valgrind short-masked:
	CARGO="$(CARGO)" tests/arithmetic.sh $(@:short-%=%) short

bench:
	$(CARGO) run --locked --release --package ncbench -- cases

# Compares encoding with other libraries, in turn. Needs ISA-L (Debian: libisal-dev); MOEPGF names
# libmoepgf, if it takes part. ISAL=$(tools/isal.sh) takes a later ISA-L, which has GFNI.
bench-peers:
	$(LATER_ISAL) $(CARGO) bench --locked --bench peers --features bench-peers

# Compares Reed-Solomon with ISA-L and Jerasure, in turn. Needs ISA-L (Debian: libisal-dev);
# Jerasure takes part where it is installed (libjerasure2). SHAPES="4,6 10,14" runs these only,
# SHAPES="4,6 400000000" chunks of so many bytes. ISAL as above.
bench-rs:
	$(LATER_ISAL) $(CARGO) bench --locked --bench rs --features bench-peers -- $(SHAPES)

# Codes a file into chunks and back, and copies as many bytes with dd, in turn. DISK names a folder
# on the disk, and has to have 8 GB free.
bench-files:
	$(CARGO) build --locked --release --package nccodec
	tools/nccodec/benches/disk.sh $(or $(CARGO_TARGET_DIR),target)/release/nccodec $(or $(DISK),.)

# Compares the ways to make chunks by how many there are. SHAPES="128,256" runs these only.
bench-many:
	$(CARGO) bench --locked --package nccodec --bench many -- $(SHAPES)

# Compares coding over GF(q) and homomorphic hashes with GMP, in turn. Needs GMP (Debian:
# libgmp-dev). WHAT="hash verify" runs these only.
bench-hash:
	$(CARGO) bench --locked --bench hash --features bench-peers -- $(WHAT)

# Measures TCP, plain quinn and the server with each congestion controller, on paths with loss and a
# queue, and over relays. Needs root and iproute2.
bench-paths:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench paths

# The part of a bottleneck that a flow of the server takes beside one and four flows of TCP with
# cubic and with BBR, and its queue alone: half an hour. FAIR="--cells cubic-1-10,alone" measures the
# cells whose names begin so. Needs root, iproute2 and nginx.
bench-fair:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench paths -- shares --seconds 30 $(FAIR)

# A live stream and its viewers, with and without each other's help. Needs root and iproute2.
bench-sharing:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench sharing

# Simulates swarms of up to 10,000 viewers in virtual time. Needs no privileges, and most of an
# hour.
bench-swarms:
	$(CARGO) bench --locked --profile release --bench swarms -- --plots $(CURDIR)/docs/plots

# Simulates a fleet of 100 servers and a million viewers in virtual time. Needs no privileges, and a
# minute.
bench-fleets:
	$(CARGO) bench --locked --profile release --bench fleets -- --plots $(CURDIR)/docs/plots

# Simulates five servers and 200 viewers with the shipped machines in virtual time, a hundred times
# for each thing that happens to them. Needs no privileges, and some minutes.
bench-servers:
	$(CARGO) test --locked --release --test sim_servers -- --ignored --nocapture

# Floods a server with handshakes that nobody continues, beside an honest viewer. Needs root and
# iproute2.
bench-handshakes:
	$(CARGO) test --locked --release --test hostile -- --ignored --exact --nocapture \
		flood::twenty_thousand_spoofed_handshakes_a_second_harm_nobody

# Round trips of a connection of a full server that refuses 5,000 to 80,000 handshakes a second at
# one socket. Needs no privileges, and half a minute.
bench-refusals:
	$(CARGO) test --locked --release --package ncs-net --lib -- --ignored --exact --nocapture \
		endpoint::doorway::tests::round_trips_beside_floods_at_a_full_server

# Measures an honest viewer beside each of four attacks: its rate without them, and with them. Needs
# no privileges, and three minutes.
bench-attacks:
	$(CARGO) test --locked --release --test hostile -- --ignored --exact --nocapture rates::rates_beside_attacks

# Kills a server ten times, three seconds each, and measures how soon a gateway recovers. Needs no
# privileges, and two minutes.
bench-recovery:
	$(CARGO) test --locked --release --test recovery -- --ignored --exact --nocapture times_to_recovery

# Watches a server for two hours while its origin, its configuration, its certificate and its
# viewers change. SOAK="--minutes 10 --viewers 1000" sets options. Needs no privileges.
bench-soak:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench soak -- $(SOAK)

# The same for two minutes, with 200 viewers: nothing may be late, wrong or lost. Programs that are
# built along with a bench have the features of dev-dependencies, too, as those that `make test`
# builds: so CI does not build the daemon again.
smoke:
	$(CARGO) build --locked --profile release --bins --bench soak
	$(CARGO) bench --locked --profile release --bench soak -- --smoke

# Kills either of two servers a thousand times under one player: no segment may be late or wrong.
# Two hours. KILLS sets the number.
KILLS ?= 1000
kills:
	NATS_SERVER=$$(tools/nats.sh) NCTEST_REQUIRE_ALL=1 NCTEST_KILLS=$(KILLS) $(CARGO) test --locked \
		--release --test steering -- --nocapture either_of_two_servers

# Kills each of three nodes of NATS that keep the document of a fleet. A minute, on a quiet machine.
nodes:
	NATS_SERVER=$$(tools/nats.sh) NCTEST_REQUIRE_ALL=1 $(CARGO) test --locked --release --test fleet \
		-- --ignored --exact configured::three_nodes_keep_a_document

# Outages of a fleet of five servers under 500 viewers, one after the other: programs are killed a
# hundred times, the engine is off for ten minutes, the network is divided, a clock jumps. Writes
# reports to target/outages. Needs root, iproute2, nftables, nginx, 16 cores and an hour;
# SCENARIOS="scenarios::the_engine_is_off" runs these alone.
outages:
	mkdir -p $(or $(CARGO_TARGET_DIR),target)/outages
	NATS_SERVER=$$(tools/nats.sh) NCTEST_REQUIRE_ALL=1 NCTEST_SERVERS=5 NCTEST_VIEWERS=500 \
		NCTEST_KILLS=$(OUTAGE_KILLS) NCTEST_OUTAGE=$(OUTAGE_SECONDS) NCTEST_CALM=20 \
		NCTEST_OUT=$(abspath $(or $(CARGO_TARGET_DIR),target)/outages) \
		NCTEST_COMMIT=$$(git describe --always --dirty) \
		$(CARGO) test --locked --release --test outages -- --nocapture --test-threads 1 --include-ignored $(SCENARIOS)

OUTAGE_KILLS ?= 100
OUTAGE_SECONDS ?= 600

# Packs this test with all that it starts for another Linux host: CONTRIBUTING.md says how to run it
# there.
outages-bundle:
	python3 deploy/outages-bundle.py

# Programs of the tag or commit FROM and of this tree serve each other, on paths that lose a tenth of
# all packets, as relays, and in one fleet. Builds the former below mixed/ in the target folder, once.
mixed:
	programs=$$(CARGO="$(CARGO)" tools/programs-of.sh "$(FROM)") && \
		NATS_SERVER=$$(tools/nats.sh) NCTEST_REQUIRE_ALL=1 \
		OLD_NCPEER=$$programs/ncpeer OLD_NCSERVERD=$$programs/ncserverd \
		$(CARGO) test --locked --release --test versions -- --ignored --nocapture --test-threads 1 mixed::

# Writes tests/versions/VERSION.txt: what the programs of a release, which this tree has to be, say to
# each other. `make test` plays it to later programs.
record-exchange:
	RECORD_VERSION=$(VERSION) $(CARGO) test --locked --release --test versions -- --ignored --exact \
		--nocapture record

# Measures how many viewers this host serves, and what each thousand takes. VIEWERS="--viewers 10000
# --server-cores 0-7 --viewer-cores 8-15 --backend cuda" sets options. Needs no privileges.
bench-viewers:
	$(CARGO) build --locked --profile dist --bins
	$(CARGO) bench --locked --profile dist --bench viewers -- $(VIEWERS)

# Offers a server two and four times the viewers that it can carry, at several rates of joining.
# OVERLOAD="--capacity 30000 --server-cores 0-7 --viewer-cores 8-15 --backend cuda --out DIRECTORY"
# sets options; "--generator" shows what the viewers' side can do. Needs no privileges.
bench-overload:
	$(CARGO) build --locked --profile dist --bins
	$(CARGO) bench --locked --profile dist --bench overload -- $(OVERLOAD)

# The pictures in docs/screenshots: pages of a server and a gateway with some load, light and dark.
# Needs chromium; two minutes.
screenshots:
	$(CARGO) build --locked --release --bins
	tools/screenshots.py

# Where the processor time of a segment goes, for coded blocks and plain streams. Needs perf, and
# programs with frame pointers: tools/profile.sh says how to build them.
# PROFILE="PROGRAMS BACKEND SERVER_CORES VIEWER_CORES VIEWERS JOINS_A_SECOND".
bench-profile:
	tools/profile.sh $(PROFILE)

# One minute of it at twice the capacity, on two processors: at least 90 % of the capacity has to be
# delivered, and nobody who was served may be put out, in one of four runs.
smoke-overload:
	$(CARGO) build --locked --profile release --bins --bench overload
	$(CARGO) bench --locked --profile release --bench overload -- --smoke $(OVERLOAD)

# Runs hls.js, dash.js and Shaka in Chromium on slow paths, directly from nginx and through the
# gateway. Needs root, iproute2, ffmpeg, nginx, chromium and npm; four hours. ABR="--players hls.js
# --rates 0.7 --loss 0 --runs 1" runs a part of it, ABR="--parallel 4" four cells at a time.
bench-abr:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench abr -- $(ABR)

# hls.js plays a live stream through loss: from nginx, through the gateway, and with the peer in the
# page. Needs the same; half an hour. LIVE="--loss 10 --runs 1" runs a part of it.
bench-live:
	$(CARGO) build --locked --profile release --bins
	$(CARGO) bench --locked --profile release --bench abr -- --live --rates 10 --loss 0,5,10 $(LIVE)

# Those of bench-abr in one cell per player: through the gateway none may be clearly worse than by
# plain HTTP.
smoke-abr:
	$(CARGO) build --locked --profile release --bins --bench abr
	$(CARGO) bench --locked --profile release --bench abr -- --smoke

# That the fields, the codes and the protocol compile for ARM. What it needs is in the script.
check-aarch64:
	CARGO="$(CARGO)" tools/check-aarch64.sh

# That the fuzz targets compile, which takes no nightly toolchain.
check-fuzz:
	CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target) $(CARGO) check --locked --release --manifest-path fuzz/Cargo.toml

# Each fuzz target for a while. Needs cargo-fuzz and a nightly toolchain.
FUZZ_SECONDS ?= 60
fuzz:
	for target in $$(cargo +nightly fuzz list); do \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# Packs the test executables, stripped, for a host with a GPU and no Rust toolchain: CONTRIBUTING.md
# says how to run them there. TESTS="backends end_to_end" packs these only.
gpu-bundle:
	python3 deploy/gpu-bundle.py $(TESTS)
