//! Media types by the names of objects.

/// The media type by an object's name, for servers that name none.
pub fn media_type(path: &str) -> &'static str {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let extension = path
        .rsplit('/')
        .next()
        .and_then(|name| name.rsplit_once('.'))
        .map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "m3u8" | "m3u" => "application/vnd.apple.mpegurl",
        "mpd" => "application/dash+xml",
        "ts" => "video/mp2t",
        "m4s" => "video/iso.segment",
        "mp4" | "m4v" | "cmfv" => "video/mp4",
        "m4a" | "cmfa" => "audio/mp4",
        "aac" => "audio/aac",
        "mp3" => "audio/mpeg",
        "webm" => "video/webm",
        "vtt" => "text/vtt",
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "json" => "application/json",
        "html" => "text/html; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_media_types() {
        assert_eq!(
            media_type("/live/master.m3u8?token=a.ts"),
            "application/vnd.apple.mpegurl"
        );
        assert_eq!(media_type("/live/1.TS"), "video/mp2t");
        assert_eq!(media_type("/live.ts/plain"), "application/octet-stream");
    }
}
