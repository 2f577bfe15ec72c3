//! Host names to addresses without the system's resolver library, which a static binary cannot load.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hickory_resolver::TokioResolver;
use hyper_util::client::legacy::connect::dns::Name;

/// Asks what /etc/resolv.conf and /etc/hosts name. Made at the first name, as most lookups are of numeric addresses.
#[derive(Debug, Clone, Default)]
pub struct Names {
    resolver: Arc<Mutex<Option<TokioResolver>>>,
}

type Addresses = std::vec::IntoIter<SocketAddr>;

impl Names {
    fn resolver(&self) -> Result<TokioResolver, std::io::Error> {
        let mut kept = self.resolver.lock().map_err(|_| std::io::Error::other("a thread died"))?;
        if let Some(resolver) = &*kept {
            return Ok(resolver.clone());
        }
        let made = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        let made = made.map_err(|e| std::io::Error::other(format!("/etc/resolv.conf: {e}")))?;
        Ok(kept.insert(made).clone())
    }

    async fn look_up(self, name: String) -> Result<Addresses, std::io::Error> {
        // Never asked of anyone else (RFC 6761).
        if name == "localhost" || name.ends_with(".localhost") {
            let own = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            return Ok(own.map(|ip| SocketAddr::new(ip, 0)).to_vec().into_iter());
        }
        let found = self.resolver()?.lookup_ip(name.as_str()).await;
        let found = found.map_err(|e| std::io::Error::other(format!("{name} has no address: {e}")))?;
        Ok(found.iter().map(|ip| SocketAddr::new(ip, 0)).collect::<Vec<_>>().into_iter())
    }
}

impl tower_service::Service<Name> for Names {
    type Response = Addresses;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Addresses, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(self.clone().look_up(name.as_str().to_owned()))
    }
}
