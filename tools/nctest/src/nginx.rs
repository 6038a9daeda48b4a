//! The configuration of nginx for a test: one folder of media, and a log of requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Writes a configuration into a folder, by which nginx serves its folder `media` at this address
/// and writes `access.log` there. Start it by `nginx -p FOLDER -c FILE`.
///
/// # Panics
/// If it cannot be written.
pub fn configure(folder: &Path, address: SocketAddr) -> PathBuf {
    let here = folder.display();
    let configuration = format!(
        "daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/error.log;\n\
         events {{}}\n\
         http {{\n\
         access_log {here}/access.log; client_body_temp_path {here}/body; \
         proxy_temp_path {here}/proxy;\n\
         fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; \
         scgi_temp_path {here}/scgi;\n\
         types {{ application/vnd.apple.mpegurl m3u8; video/mp2t ts; video/iso.segment m4s; \
         video/mp4 mp4; }}\n\
         server {{ listen {address}; root {here}/media; }}\n\
         }}\n"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, configuration).expect("the configuration of nginx is written");
    file
}
