// Written by web/embed.py.
&[
    ("/hls.js", include_bytes!("hls.js.gz")),
    ("/peer/client.js", include_bytes!("peer-client.js.gz")),
    ("/peer/connection.js", include_bytes!("peer-connection.js.gz")),
    ("/peer/dash.js", include_bytes!("peer-dash.js.gz")),
    ("/peer/element.js", include_bytes!("peer-element.js.gz")),
    ("/peer/hls.js", include_bytes!("peer-hls.js.gz")),
    ("/peer/index.js", include_bytes!("peer-index.js.gz")),
    ("/peer/local.js", include_bytes!("peer-local.js.gz")),
    ("/peer/module.js", include_bytes!("peer-module.js.gz")),
    ("/peer/ncs_web.wasm", include_bytes!("peer-ncs_web.wasm.gz")),
    ("/peer/remote.js", include_bytes!("peer-remote.js.gz")),
    ("/peer/server.js", include_bytes!("peer-server.js.gz")),
    ("/peer/shaka.js", include_bytes!("peer-shaka.js.gz")),
    ("/peer/types.js", include_bytes!("peer-types.js.gz")),
    ("/peer/whole.js", include_bytes!("peer-whole.js.gz")),
    ("/peer/worker.js", include_bytes!("peer-worker.js.gz")),
]
