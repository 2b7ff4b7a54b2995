"""The keywords of ``ssh_config``: which we follow, which we may skip, which we refuse.

Followed
    they change where or as whom we connect, what we trust, or when a silent host is given up.
Skipped
    they concern terminals, forwarding, master connections: things
    a dispatch link does not have, or has in its own stricter form.
Refused
    they change who is trusted or how the host is reached, and the built-in
    client cannot do it: following the rest of the config without them would
    connect in another way than the user wrote down.
"""

# ruff: noqa: SIM905 - word lists read better as paragraphs
from __future__ import annotations

#: Older spellings.
ALIASES = {
    "dsaauthentication": "pubkeyauthentication",
    "identityfile2": "identityfile",
    "hostbasedkeytypes": "hostbasedacceptedalgorithms",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "smartcarddevice": "pkcs11provider",
}

#: One word; the first value wins.
SINGLE = frozenset(
    "addressfamily bindaddress connecttimeout hashknownhosts hostkeyalias hostname identitiesonly "
    "identityagent port preferredauthentications pubkeyauthentication stricthostkeychecking tag "
    "user ciphers macs kexalgorithms hostkeyalgorithms pubkeyacceptedalgorithms "
    "canonicalizehostname pkcs11provider securitykeyprovider proxyusefdpass "
    "bindinterface revokedhostkeys serveralivecountmax serveraliveinterval sessiontype".split()
)

#: Several words; the first line wins.
LISTS = frozenset(("globalknownhostsfile", "userknownhostsfile"))

#: One word; every line counts.
REPEATED = frozenset(("certificatefile", "identityfile"))

#: The rest of the line, quotes and all.
RAW = frozenset(("knownhostscommand", "proxycommand", "proxyjump", "remotecommand"))

#: Value with which a refused option is harmless; any other is a failure.
REFUSED = {
    "bindinterface": ("none",),
    "canonicalizehostname": ("no", "false"),
    "knownhostscommand": ("none",),
    "pkcs11provider": ("none",),
    "proxyusefdpass": ("no", "false"),
    "remotecommand": ("none",),
    "revokedhostkeys": ("none",),
    "securitykeyprovider": ("internal", "none"),
    "sessiontype": ("default",),
}

SKIPPED = frozenset(
    "addkeystoagent afstokenpassing batchmode canonicaldomains canonicalizefallbacklocal "
    "canonicalizemaxdots canonicalizepermittedcnames casignaturealgorithms "
    "challengeresponseauthentication channeltimeout checkhostip cipher clearallforwardings "
    "compression compressionlevel connectionattempts controlmaster controlpath controlpersist "
    "dynamicforward enableescapecommandline enablesshkeysign escapechar exitonforwardfailure "
    "fallbacktorsh fingerprinthash forkafterauthentication forwardagent forwardx11 "
    "forwardx11timeout forwardx11trusted gatewayports globalknownhostsfile2 gssapiauthentication "
    "gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapikeyexchange "
    "gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hostbasedacceptedalgorithms "
    "hostbasedauthentication ignoreunknown ipqos kbdinteractiveauthentication "
    "kbdinteractivedevices keepalive kerberosauthentication kerberostgtpassing localcommand "
    "localforward loglevel logverbose nohostauthenticationforlocalhost numberofpasswordprompts "
    "obscurekeystroketiming passwordauthentication permitlocalcommand permitremoteopen protocol "
    "refuseconnection rekeylimit remoteforward requesttty requiredrsasize rhostsauthentication "
    "rhostsrsaauthentication rsaauthentication sendenv "
    "setenv skeyauthentication stdinnull streamlocalbindmask streamlocalbindunlink "
    "syslogfacility tcpkeepalive tisauthentication tunnel tunneldevice updatehostkeys "
    "useprivilegedport userknownhostsfile2 useroaming usersh usekeychain verifyhostkeydns "
    "versionaddendum visualhostkey warnweakcrypto xauthlocation".split()
)

KNOWN = SINGLE | LISTS | REPEATED | RAW | SKIPPED | {"host", "match", "include"}
