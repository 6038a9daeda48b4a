# For scripts that build for wasm32-unknown-unknown, without a C compiler: `source` it. Takes
# rustup's target where it is installed, and Debian's rustc-web, cargo-web, rust-web-src and lld-19
# otherwise, which build the standard library as well.
#
# - cargo: the command.
# - options, flags: those of every build; flags are the compiler's.
# - page_options, page_flags: those of a page's module, which is as small as it can be, instead.
# - builds_std: whether the standard library is built as well.
export CC=false CC_wasm32_unknown_unknown=false
cargo=("${CARGO:-cargo}")
options=(--locked --target wasm32-unknown-unknown)
flags=
# This crate type alone: with another beside it nothing is optimised across crates.
page_options=("${options[@]}" --profile web --lib --crate-type cdylib)
page_flags=
builds_std=
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    builds_std=yes
    cargo=(env "PATH=/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo)
    options+=(-Zbuild-std=std,panic_abort)
    flags='-C linker=wasm-ld-19'
    page_options+=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
    # A panic is a trap, without a text: a page can do no more with one than with the other.
    page_flags="$flags -Zunstable-options -C panic=immediate-abort -Zlocation-detail=none"
fi
