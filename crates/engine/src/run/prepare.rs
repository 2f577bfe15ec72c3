//! What must be true before the container is made.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use sparklane_lane::{Generation, Role};

use crate::error::EngineError;
use crate::http::reachable;

/// Makes the folders and looks for what docker would only complain of later.
///
/// # Errors
/// What is missing, or in the way.
pub fn check(generation: &Generation) -> Result<(), EngineError> {
    folders(generation)?;
    devices(generation)?;
    if generation.role == Role::Head { port_free(generation) } else { Ok(()) }
}

/// Where this node's API listens, as one connects to it.
#[must_use]
pub fn api_address(generation: &Generation) -> Option<SocketAddr> {
    let host = generation.engine.api_host.as_str();
    let ip: IpAddr = if host == "localhost" { [127, 0, 0, 1].into() } else { host.parse().ok()? };
    Some(SocketAddr::new(reachable(ip), generation.engine.api_port))
}

/// A foreign listener would both keep the engine from its port and answer our health checks in its place.
fn port_free(generation: &Generation) -> Result<(), EngineError> {
    let host = &generation.engine.api_host;
    let Some(address) = api_address(generation) else {
        let why = format!("engine.apiHost {host:?} is no address");
        return Err(EngineError::Generation { path: "generation.json".to_owned(), why });
    };
    match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        Ok(_) => Err(EngineError::PortTaken { address: address.to_string() }),
        Err(_) => Ok(()),
    }
}

/// Makes what is to be made. Whether the other sources are there is docker's to say: the unit cannot see all it can.
fn folders(generation: &Generation) -> Result<(), EngineError> {
    let engine = &generation.engine;
    let made = engine.mounts.iter().filter(|m| m.create).map(|m| &m.source).chain(engine.cache_roots.values());
    for path in made {
        std::fs::create_dir_all(path).map_err(|source| EngineError::Folder { path: path.clone(), source })?;
    }
    Ok(())
}

fn devices(generation: &Generation) -> Result<(), EngineError> {
    match generation.engine.devices.iter().find(|path| !Path::new(path).exists()) {
        Some(path) => Err(EngineError::Device { path: path.clone() }),
        None => Ok(()),
    }
}
