//! A registry that lies, truncates, stalls, redirects and forgets tokens; every row of the issue table that is the
//! client's (facts/image-tools.md section 5) by its number.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use sparklane_oci::registry::{Event, PullOptions, RegistryError, pull_blobs};
use sparklane_oci::{Descriptor, OciError, Platform};
use support::*;

const KIB: usize = 1024;

/// Bytes that differ from place to place, so that a shift shows.
fn content(len: usize) -> Bytes {
    (0..len).map(|i| u8::try_from((i * 31 + i / 251) % 251).unwrap()).collect::<Vec<_>>().into()
}

async fn pull(server: &Server, wanted: &Descriptor, fixture: &Fixture) -> Result<u64, OciError> {
    let repo = client(&[]).repo(&server.reference("a/b:1")).unwrap();
    pull_blobs(&repo, &fixture.layout, std::slice::from_ref(wanted), &quick()).await.map(|p| p.bytes)
}

#[tokio::test]
async fn row_17_a_body_that_breaks_is_resumed_where_it_broke() {
    let blob = content(600 * KIB);
    let server = serve(&[&blob], |nth, request, blob| match (nth, request.range()) {
        (0, None) => broken(blob, 180 * KIB),
        (1, Some(from)) => broken_from(blob, from, 10),
        (_, Some(from)) => partial(blob, from, blob.len()),
        (_, None) => panic!("asked for the whole again"),
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    let moved = pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
    assert_eq!(moved, wanted.size, "no byte twice");
    assert!(server.blob_requests().len() >= 3);
}

#[tokio::test]
async fn row_17_a_partial_file_of_another_process_is_gone_on_with() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |_, request, blob| partial(blob, request.range().unwrap(), blob.len())).await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    f.put_partial(&wanted, &blob[..200 * KIB]);
    assert_eq!(pull(&server, &wanted, &f).await.unwrap(), 100 * KIB as u64);
    f.layout.prove_blob(&wanted).unwrap();
}

#[tokio::test]
async fn row_17_the_whole_for_a_range_begins_anew() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |_, _, blob| whole(blob)).await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    f.put_partial(&wanted, &blob[..200 * KIB]);
    assert_eq!(pull(&server, &wanted, &f).await.unwrap(), 300 * KIB as u64);
    f.layout.prove_blob(&wanted).unwrap();
}

#[tokio::test]
async fn row_17_a_wrong_content_range_is_not_believed_and_what_is_here_is_kept() {
    let blob = content(300 * KIB);
    let size = blob.len();
    let lies: [fn(&Bytes) -> Reply; 5] = [
        |blob| partial(blob, 0, blob.len()),
        |blob| partial(blob, 100 * KIB + 1, blob.len()),
        |blob| partial(blob, 100 * KIB, blob.len() + 1),
        |blob| reply(206, blob.slice(100 * KIB..)),
        |blob| partial(blob, 100 * KIB, blob.len()).header("content-encoding", "gzip"),
    ];
    for lie in lies {
        let server = serve(&[&blob], move |_, _, blob| lie(blob)).await;
        let (f, wanted) = (fixture(), blob_of(&blob));
        f.put_partial(&wanted, &blob[..100 * KIB]);
        let error = pull(&server, &wanted, &f).await.unwrap_err();
        assert!(matches!(error, OciError::Registry(RegistryError::Lie { .. })), "{error}");
        assert_eq!(server.blob_requests().len(), 1, "a liar is not asked twice");
        assert_eq!(f.partial_len(&wanted), Some(100 * KIB as u64));
        assert!(!f.layout.has(&wanted.digest));
        assert_eq!(size, 300 * KIB);
    }
}

#[tokio::test]
async fn row_17_a_length_that_is_not_the_manifests_is_not_believed() {
    let blob = content(10 * KIB);
    for other in [content(9 * KIB), content(11 * KIB)] {
        let server = serve(&[&blob], move |_, _, _| whole(&other)).await;
        let (f, wanted) = (fixture(), blob_of(&blob));
        let error = pull(&server, &wanted, &f).await.unwrap_err();
        assert!(matches!(error, OciError::Registry(RegistryError::Lie { .. })), "{error}");
    }
    // Without a length it shows only at the end.
    let longer = content(11 * KIB);
    let server = serve(&[&blob], move |_, _, _| chunked(longer.clone())).await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    assert!(pull(&server, &wanted, &f).await.unwrap_err().to_string().contains("more than"));
}

#[tokio::test]
async fn row_20_wrong_bytes_never_become_a_blob() {
    let blob = content(300 * KIB);
    let mut wrong = blob.to_vec();
    wrong[299 * KIB] ^= 1;
    let wrong = Bytes::from(wrong);
    let server = serve(&[&blob], move |_, _, _| whole(&wrong)).await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    let error = pull(&server, &wanted, &f).await.unwrap_err();
    assert!(matches!(error, OciError::DigestMismatch { .. }), "{error}");
    assert!(!f.layout.has(&wanted.digest));
    assert_eq!(f.partial_len(&wanted), None);
}

#[tokio::test]
async fn row_20_a_damaged_partial_file_is_fetched_anew() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |_, request, blob| match request.range() {
        Some(from) => partial(blob, from, blob.len()),
        None => whole(blob),
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    f.put_partial(&wanted, &[0; 100 * KIB]);
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
    // Full but wrong: no question is asked before it is known.
    let g = fixture();
    g.put_partial(&wanted, &vec![0; blob.len()]);
    pull(&server, &wanted, &g).await.unwrap();
    g.layout.prove_blob(&wanted).unwrap();
}

#[tokio::test]
async fn a_range_that_is_refused_begins_anew() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |_, request, blob| match request.range() {
        Some(_) => reply(416, Bytes::new()).header("content-range", &format!("bytes */{}", blob.len())),
        None => whole(blob),
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    f.put_partial(&wanted, &blob[..100 * KIB]);
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
}

#[tokio::test]
async fn row_19_a_token_that_ends_is_renewed_and_goes_to_the_registry_alone() {
    let blob = content(900 * KIB);
    let storage = serve(&[&blob], |nth, request, blob| {
        let from = request.range().unwrap_or(0);
        if nth == 0 { broken(blob, 300 * KIB) } else { partial(blob, from, blob.len()) }
    })
    .await;
    let target = storage.url(&format!("/v2/a/b/blobs/{}", blob_of(&blob).digest));
    let server = serve_with_tokens(&[&blob], 1, move |_, _, _| {
        reply(307, Bytes::new()).header("location", &format!("{target}?sig=secret"))
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
    assert_eq!(server.tokens_given(), 2, "the first token was good for one request");
    let token = &server.requests().into_iter().find(|r| r.path.starts_with("/token")).unwrap().path;
    assert!(token.contains("scope=repository%3Aa%2Fb%3Apull") && token.contains("service=registry"), "{token}");
    for request in storage.requests() {
        assert_eq!(request.header("authorization"), None, "no credentials behind a redirect");
        assert!(request.path.ends_with("?sig=secret"));
    }
}

#[tokio::test]
async fn row_19_an_address_that_has_ended_is_asked_for_anew() {
    let blob = content(100 * KIB);
    let storage = serve(&[&blob], |_, request, blob| {
        if request.path.ends_with("?sig=1") { reply(403, "Request has expired".into()) } else { whole(blob) }
    })
    .await;
    let target = storage.url(&format!("/v2/a/b/blobs/{}", blob_of(&blob).digest));
    let server = serve(&[&blob], move |nth, _, _| {
        reply(307, Bytes::new()).header("location", &format!("{target}?sig={}", nth + 1))
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
    assert_eq!(server.blob_requests().len(), 2);
}

#[tokio::test]
async fn a_registry_that_refuses_says_so_once() {
    let blob = content(KIB);
    for (status, word) in [(403, "403"), (404, "does not exist"), (401, "without a login")] {
        let server = serve(&[&blob], move |_, _, _| {
            let reply = reply(status, r#"{"errors":[{"code":"DENIED","message":"no"}]}"#.into());
            if status == 401 { reply.header("www-authenticate", "Basic realm=x") } else { reply }
        })
        .await;
        let (f, wanted) = (fixture(), blob_of(&blob));
        let error = pull(&server, &wanted, &f).await.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert_eq!(server.blob_requests().len(), 1);
    }
}

#[tokio::test]
async fn it_is_given_up_only_without_progress() {
    let blob = content(4096 * KIB);
    // Twelve breaks with progress are borne…
    let server = serve(&[&blob], |_, request, blob| {
        let from = request.range().unwrap_or(0);
        let left = blob.slice(from..);
        if left.len() <= 300 * KIB { partial(blob, from, blob.len()) } else { broken_from(blob, from, 320 * KIB) }
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
    assert!(server.blob_requests().len() > 10);
    // …seven without are not, and what came is kept.
    let server = serve(&[&blob], |nth, request, blob| match request.range() {
        None => broken(blob, 500 * KIB),
        Some(from) => broken_from(blob, from, nth % 2),
    })
    .await;
    let f = fixture();
    let error = pull(&server, &wanted, &f).await.unwrap_err();
    assert!(matches!(error, OciError::Registry(RegistryError::GaveUp { .. })), "{error}");
    assert!(f.partial_len(&wanted).unwrap() >= 500 * KIB as u64);
}

#[tokio::test]
async fn a_stall_ends_the_connection_not_the_pull() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |nth, request, blob| match (nth, request.range()) {
        (0, _) => stalled(blob, 100 * KIB),
        (_, from) => partial(blob, from.unwrap(), blob.len()),
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    pull(&server, &wanted, &f).await.unwrap();
    f.layout.prove_blob(&wanted).unwrap();
}

#[tokio::test]
async fn a_busy_registry_is_waited_for() {
    let blob = content(KIB);
    let server = serve(&[&blob], |nth, _, blob| match nth {
        0 => reply(429, Bytes::new()).header("retry-after", "1"),
        1 => reply(503, Bytes::new()),
        _ => whole(blob),
    })
    .await;
    let (f, wanted) = (fixture(), blob_of(&blob));
    let begin = std::time::Instant::now();
    pull(&server, &wanted, &f).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let forever = serve(&[&blob], |_, _, _| reply(429, Bytes::new()).header("retry-after", "86400")).await;
    let error = pull(&forever, &wanted, &fixture()).await.unwrap_err();
    assert!(matches!(error, OciError::Registry(RegistryError::GaveUp { .. })), "{error}");
}

#[tokio::test]
async fn several_blobs_come_at_once_and_each_once() {
    let blobs: Vec<Bytes> = (1..=6).map(|i| content(50 * KIB + i)).collect();
    let server = serve(&blobs.iter().collect::<Vec<_>>(), |_, _, blob| whole(blob)).await;
    let f = fixture();
    let wanted: Vec<Descriptor> = blobs.iter().map(blob_of).collect();
    let repo = client(&[]).repo(&server.reference("a/b:1")).unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let options = PullOptions { progress: Arc::new(move |e| log.lock().unwrap().push(e)), ..quick() };
    let plain = quick();
    let (one, two) =
        tokio::join!(pull_blobs(&repo, &f.layout, &wanted, &options), pull_blobs(&repo, &f.layout, &wanted, &plain),);
    let (one, two) = (one.unwrap(), two.unwrap());
    let total: u64 = wanted.iter().map(|d| d.size).sum();
    assert_eq!(one.bytes + two.bytes, total, "two processes share the work");
    wanted.iter().for_each(|d| f.layout.prove_blob(d).unwrap());
    assert!(seen.lock().unwrap().iter().any(|e| matches!(e, Event::Done { .. })) || one.bytes == 0);
    assert_eq!(pull_blobs(&repo, &f.layout, &wanted, &quick()).await.unwrap().present, 6);
}

#[tokio::test]
async fn room_is_looked_for_before_anything_is_asked() {
    let blob = content(KIB);
    let server = serve(&[&blob], |_, _, blob| whole(blob)).await;
    let wanted = Descriptor { size: 1 << 60, ..blob_of(&blob) };
    let error = pull(&server, &wanted, &fixture()).await.unwrap_err();
    assert!(matches!(error, OciError::Space { .. }), "{error}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_rate_is_kept() {
    let blob = content(300 * KIB);
    let server = serve(&[&blob], |_, _, blob| whole(blob)).await;
    let repo = client(&[]).repo(&server.reference("a/b:1")).unwrap();
    let begin = std::time::Instant::now();
    let options = PullOptions { rate: Some(300 * KIB as u64), ..quick() };
    pull_blobs(&repo, &fixture().layout, &[blob_of(&blob)], &options).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(600), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn plain_http_is_for_this_machine_unless_told() {
    let repo = |plain: &[&str]| client(plain).repo(&"192.0.2.1:5000/a/b:1".parse().unwrap()).unwrap();
    assert_eq!(repo(&[]).url("x").unwrap().scheme(), "https");
    assert_eq!(repo(&["192.0.2.1:5000"]).url("x").unwrap().scheme(), "http");
    let blob = content(KIB);
    let server = serve(&[&blob], |_, _, _| reply(307, Bytes::new()).header("location", "http://192.0.2.1/x")).await;
    let error = pull(&server, &blob_of(&blob), &fixture()).await.unwrap_err();
    assert!(matches!(error, OciError::Registry(RegistryError::Plain { .. })), "{error}");
}

#[tokio::test]
async fn redirects_end() {
    let blob = content(KIB);
    let server = serve(&[&blob], |_, request, _| reply(307, Bytes::new()).header("location", &request.path)).await;
    let error = pull(&server, &blob_of(&blob), &fixture()).await.unwrap_err();
    assert!(error.to_string().contains("redirects without end"), "{error}");
}

#[tokio::test]
async fn a_manifest_is_what_was_asked_for() {
    let image = image("arm64");
    let server = serve_image(&image).await;
    let repo = client(&[]).repo(&server.reference("a/b:1")).unwrap();
    let found = repo.resolve("1", &Platform::linux("arm64")).await.unwrap();
    assert_eq!(found.manifest.bytes(), image.manifest);
    assert_eq!(found.config.bytes(), image.config);
    let by_digest = repo.resolve(found.manifest.digest().as_str(), &Platform::linux("arm64")).await.unwrap();
    assert_eq!(by_digest.manifest.digest(), found.manifest.digest());
    let asked = &server.requests()[0];
    let accept = asked.header("accept").unwrap();
    assert_eq!(accept.split(',').count(), 4, "{accept}");
    assert_eq!(asked.header("accept-encoding"), None);
    let other = repo.resolve("1", &Platform::linux("amd64")).await.unwrap_err();
    assert!(other.to_string().contains("linux/arm64"), "{other}");

    server.lie_about_manifests(|reply| reply.header("content-type", "application/vnd.oci.image.index.v1+json"));
    let error = repo.resolve("1", &Platform::linux("arm64")).await.unwrap_err().to_string();
    assert!(error.contains("calls itself"), "{error}");
    server.lie_about_manifests(|reply| reply.header("docker-content-digest", &format!("sha256:{:064}", 0)));
    let error = repo.resolve("1", &Platform::linux("arm64")).await.unwrap_err().to_string();
    assert!(error.contains("Docker-Content-Digest"), "{error}");
    server.lie_about_manifests(|reply| reply.body(b"{}".to_vec()));
    let error = repo.resolve(found.manifest.digest().as_str(), &Platform::linux("arm64")).await.unwrap_err();
    assert!(matches!(error, OciError::DigestMismatch { .. }), "{error}");
    server.lie_about_manifests(|reply| reply.body(vec![b' '; 9 << 20]));
    assert!(repo.resolve("1", &Platform::linux("arm64")).await.unwrap_err().to_string().contains("longer"));
}

#[tokio::test]
async fn a_login_is_sent_to_the_token_server_and_never_shown() {
    let blob = content(KIB);
    let server = serve_with_tokens(&[&blob], 100, |_, _, blob| whole(blob)).await;
    let host = server.reference("a/b:1").host().to_string();
    let registry =
        client_with(&[], &format!(r#"{{"auths": {{"{host}": {{"username": "me", "password": "hunter2"}}}}}}"#));
    let repo = registry.repo(&server.reference("a/b:1")).unwrap();
    pull_blobs(&repo, &fixture().layout, &[blob_of(&blob)], &quick()).await.unwrap();
    let asked = server.requests();
    let token = asked.iter().find(|r| r.path.starts_with("/token")).unwrap();
    assert!(token.header("authorization").unwrap().starts_with("Basic "));
    let got = asked.iter().rfind(|r| r.path.contains("/blobs/")).unwrap();
    assert!(got.header("authorization").unwrap().starts_with("Bearer "));
    assert!(!format!("{registry:?}{repo:?}").contains("hunter2"));
    assert_eq!(StatusCode::OK, 200);
}
