//! Error codes of S3, Google Cloud Storage and Azure Blob, with their kinds and remedies.
//!
//! Only codes of this table are shown: the rest of a server's message may contain keys and signatures.

use copperfs_overlay::FailureKind;

/// A code in the body of a store's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Code {
    pub(super) name: &'static str,
    pub(super) kind: FailureKind,
    /// The remedy.
    pub(super) hint: &'static str,
}

const NO_BUCKET: &str = "there is no such bucket: check its name, the region and the endpoint";
const WRONG_KEY: &str = "the store does not know this access key: check it, and the endpoint";
const WRONG_SIGNATURE: &str =
    "the secret key is not that of the access key, or a proxy changes requests";
const EXPIRED: &str = "the session's token has expired: get a new one, then run copperfs reload";
const CLOCK: &str =
    "this machine's clock is wrong: set it (timedatectl set-ntp true), then try again";
const REGION: &str = "the bucket lies in another region: set the option region (AWS_REGION)";
const ARCHIVED: &str = "the object lies in an archive: have the store restore it first";
const AZURE_KEY: &str = "the key or token is not one of this account, has expired, or this machine's clock is wrong: \
     check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or the SAS token)";
const AZURE_REFUSED: &str =
    "the key is not the account's, or the account's firewall refuses this address";
const AZURE_PUBLIC: &str = "the container is not public: set AZURE_STORAGE_ACCOUNT_KEY, a SAS token or a client's credentials";

const SLOW_DOWN: &str = "the store asks for fewer requests; try again later";
const READERS_PAY: &str = "the bucket's readers pay, which copperfs does not do: ask its owner";
const NO_CONTAINER: &str = "there is no such container: check its name and the account";
const BAD_CONTAINER: &str = "no container can have this name";
const NO_ROLE: &str =
    "the credentials may not read this: they need the role Storage Blob Data Reader";
const DISABLED: &str = "the account is disabled: ask its owner";

use FailureKind::{Io, NotFound, PermissionDenied, Unavailable};

const CODES: &[(&str, FailureKind, &str)] = &[
    // S3, and Google's XML interface, which has most of them too.
    ("NoSuchBucket", NotFound, NO_BUCKET),
    ("InvalidBucketName", NotFound, NO_BUCKET),
    ("InvalidAccessKeyId", PermissionDenied, WRONG_KEY),
    ("SignatureDoesNotMatch", PermissionDenied, WRONG_SIGNATURE),
    ("RequestTimeTooSkewed", PermissionDenied, CLOCK),
    ("ExpiredToken", PermissionDenied, EXPIRED),
    ("InvalidToken", PermissionDenied, EXPIRED),
    ("PermanentRedirect", Io, REGION),
    ("AuthorizationHeaderMalformed", Io, REGION),
    ("IllegalLocationConstraintException", Io, REGION),
    ("InvalidObjectState", PermissionDenied, ARCHIVED),
    ("SlowDown", Unavailable, SLOW_DOWN),
    ("UserProjectMissing", Io, READERS_PAY),
    // Azure.
    ("ContainerNotFound", NotFound, NO_CONTAINER),
    ("InvalidResourceName", NotFound, BAD_CONTAINER),
    ("AuthenticationFailed", PermissionDenied, AZURE_KEY),
    ("AuthorizationFailure", PermissionDenied, AZURE_REFUSED),
    (
        "NoAuthenticationInformation",
        PermissionDenied,
        AZURE_PUBLIC,
    ),
    ("PublicAccessNotPermitted", PermissionDenied, AZURE_PUBLIC),
    ("AuthorizationPermissionMismatch", PermissionDenied, NO_ROLE),
    ("AccountIsDisabled", PermissionDenied, DISABLED),
    ("BlobArchived", PermissionDenied, ARCHIVED),
    ("ServerBusy", Unavailable, SLOW_DOWN),
];

/// The known code in `body`, the text of a store's error.
pub(super) fn find(body: &str) -> Option<Code> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let &(name, kind, hint) = CODES.iter().find(|known| known.0 == code)?;
    Some(Code { name, kind, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_codes_are_found() {
        let body =
            "403 Forbidden: <?xml version=\"1.0\"?><Error><Code>InvalidAccessKeyId</Code></Error>";
        assert_eq!(find(body).expect("a code").name, "InvalidAccessKeyId");
        for unknown in ["", "<Code>", "<Code>AKIA-secret</Code>", "<Code></Code>"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn no_code_appears_twice() {
        for (i, code) in CODES.iter().enumerate() {
            assert!(CODES[..i].iter().all(|other| other.0 != code.0), "{code:?}");
        }
    }
}
