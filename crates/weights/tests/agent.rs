//! Both ends by their requests, as the commands run them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use sparklane_weights::adopt::adopt;
use sparklane_weights::agent::{self, Event, PullRequest, ServeRequest};
use sparklane_weights::proof::How;
use sparklane_weights::store::Presence;
use sparklane_weights::transfer::Key;
use sparklane_weights::{Store, WeightsError};
use support::*;

#[test]
fn a_store_is_sent_to_a_store_and_a_second_time_nothing_moves() {
    let (from, head, worker) = (folder(), folder(), folder());
    let manifest = model(&from.path, &SOME);
    let (has, gets) = (Store::at(&head.path), Store::at(&worker.path));
    let staging = has.staging(&manifest, &|_| true).unwrap();
    adopt(&from.path, &manifest, &staging, true, &|_| true).unwrap();
    has.publish(&manifest, staging, How::Stream).unwrap();

    let key = Key::random().unwrap().expose();
    let serving = ServeRequest {
        key: key.clone(),
        manifest: manifest.clone(),
        store: head.path.clone(),
        listen: vec![loopback(1), loopback(2)],
        seal: true,
        receivers: 1,
    };
    let stop = AtomicBool::new(false);
    let (told, heard) = mpsc::channel();
    let told = Mutex::new(told);
    std::thread::scope(|scope| {
        let serve =
            scope.spawn(|| agent::serve(&serving, &stop, &|event| told.lock().unwrap().send(event.clone()).unwrap()));
        let Event::Listening(addresses) = heard.recv().unwrap() else {
            panic!("the sender says where it listens first")
        };
        let rails = addresses.iter().enumerate();
        let rails = rails.map(|(n, peer)| format!("rail{}={}={peer}", n + 1, loopback(n as u8 + 21))).collect();
        let request = PullRequest {
            key,
            manifest: manifest.clone(),
            store: worker.path.clone(),
            rails,
            rate: None,
            connections: Some(1),
            give_up_secs: None,
            readback: true,
        };
        let notes = Mutex::new(Vec::new());
        let receipt = agent::pull(&request, &stop, &|event| {
            if let Event::Note(note) = event {
                notes.lock().unwrap().push(note.clone());
            }
        })
        .unwrap();
        assert!(receipt.ways.iter().all(|w| w.probe.as_ref().is_some_and(|p| p.bytes_per_second > 0)), "{receipt:?}");
        assert_eq!(gets.presence(&manifest).unwrap(), Presence::Proved(How::Deep));
        let json = serde_json::to_string(&Event::Receipt(Box::new(receipt.clone()))).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), Event::Receipt(Box::new(receipt)));
        serve.join().unwrap().unwrap();
        assert!(matches!(heard.recv().unwrap(), Event::Served { finished: 1, .. }));
        let again = agent::pull(&request, &stop, &|_| {}).unwrap_err();
        assert!(matches!(&again, WeightsError::Refused(why) if why.contains("proved")), "{again}");
    });
    assert_exact(&gets.folder(&manifest), &manifest);
    // What is not proved is not sent.
    let other = ServeRequest { store: from.path.clone(), ..serving };
    assert!(agent::serve(&other, &stop, &|_| {}).is_err());
}
