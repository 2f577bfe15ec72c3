//! Row 31 (dotnet/sdk-container-builds#292): a registry that dislikes chunked uploads, and others that misbehave on a push.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use sparklane_oci::registry::{RegistryError, push};
use sparklane_oci::{OciError, Reference, digest};
use support::*;

#[derive(Default)]
struct Picky {
    log: Vec<String>,
    stored: HashMap<String, Vec<u8>>,
    /// How many PUTs of blobs fail first.
    busy: usize,
    /// Says that it stored something else.
    lies: bool,
}

type Shared = Arc<Mutex<Picky>>;

fn answer(status: u16, headers: &[(&str, &str)]) -> Response {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

async fn picky(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
    let bytes = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default();
    let mut state = shared.lock().unwrap();
    state.log.push(format!("{} {}", parts.method, path.split('?').next().unwrap()));
    match parts.method.as_str() {
        "HEAD" => {
            let name = path.rsplit('/').next().unwrap();
            answer(if state.stored.contains_key(name) { 200 } else { 404 }, &[])
        }
        "POST" => answer(202, &[("location", "/upload/here?_state=a%2Bb")]),
        "PUT" if path.starts_with("/upload/") => {
            let whole =
                parts.headers.contains_key("content-length") && !parts.headers.contains_key("transfer-encoding");
            let digest = digest::of(&bytes).to_string();
            let asked = path.contains("_state=a%2Bb") && path.contains(&digest.replace(':', "%3A"));
            if !(whole && asked) {
                return answer(400, &[]);
            }
            if state.busy > 0 {
                state.busy -= 1;
                return answer(503, &[]);
            }
            state.stored.insert(digest, bytes.to_vec());
            answer(201, &[])
        }
        "PUT" => {
            let digest = digest::of(&bytes).to_string();
            let said = if state.lies { digest::of(b"other").to_string() } else { digest.clone() };
            state.stored.insert(digest, bytes.to_vec());
            answer(201, &[("docker-content-digest", &said)])
        }
        // A chunk.
        _ => answer(500, &[]),
    }
}

async fn start(picky_one: Picky) -> (Shared, Reference) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shared = Arc::new(Mutex::new(picky_one));
    let app = axum::Router::new().fallback(picky).with_state(Arc::clone(&shared));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (shared, format!("127.0.0.1:{port}/a/b:1").parse().unwrap())
}

async fn send(reference: &Reference) -> (Image, Result<push::Pushed, OciError>) {
    let (f, image) = (fixture(), image("arm64"));
    f.put_image(&image, "t");
    let manifest = f.layout.manifest(&digest::of(&image.manifest)).unwrap();
    let repo = client(&[]).repo_to_push(reference, None).unwrap();
    let pushed = push::push(&repo, &f.layout, &manifest, Some("1"), None, &|_, _| ()).await;
    (image, pushed)
}

#[tokio::test]
async fn row_31_blobs_go_in_one_piece_and_the_manifest_last() {
    let (shared, reference) = start(Picky { busy: 1, ..Picky::default() }).await;
    let (image, pushed) = send(&reference).await;
    assert_eq!(pushed.unwrap().blobs, 2);
    let state = shared.lock().unwrap();
    assert!(!state.log.iter().any(|l| l.starts_with("PATCH")), "{:?}", state.log);
    let layer: Bytes = image.layer;
    assert_eq!(state.stored[digest::of(&layer).as_str()], layer);
    let manifests = state.log.iter().position(|l| l.contains("/manifests/")).unwrap();
    assert!(state.log[manifests..].iter().all(|l| l.contains("/manifests/")), "{:?}", state.log);
    assert_eq!(state.log.iter().filter(|l| l.starts_with("POST")).count(), 3, "a failed upload begins anew");
}

#[tokio::test]
async fn a_registry_that_stored_something_else_is_not_believed() {
    let (_shared, reference) = start(Picky { lies: true, ..Picky::default() }).await;
    let (_, pushed) = send(&reference).await;
    assert!(matches!(pushed, Err(OciError::Registry(RegistryError::Lie { .. }))), "{pushed:?}");
}
