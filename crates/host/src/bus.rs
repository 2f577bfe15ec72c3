//! One call on the system bus.

use std::time::Duration;

/// Calls `(destination, path, interface, method)` on a fresh connection; the error is the bus's own words.
///
/// # Errors
/// When the bus or the service does not answer in `limit`, or answers with something else.
pub fn call<B, R>(
    (dest, path, interface, method): (&str, &str, &str, &str),
    body: &B,
    limit: Duration,
) -> Result<R, String>
where
    B: serde::Serialize + zbus::zvariant::DynamicType,
    R: serde::de::DeserializeOwned + zbus::zvariant::Type,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let asked = async {
            let bus = zbus::Connection::system().await?;
            let reply = bus.call_method(Some(dest), path, Some(interface), method, body).await?;
            reply.body().deserialize::<R>()
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer in {} s", limit.as_secs())),
        }
    })
}
