package plaintext

import (
	"encoding/json"
	"strings"
	"testing"
)

// Each holds the secret S3CRET, or S3 CRET.
var secretTexts = map[string]string{
	"http://S3CRET@host/x.git":                                "http://host/x.git",
	"HTTP://user:S3CRET@host/x":                               "HTTP://host/x",
	"hTTps://user:S3CRET@host:8443/x":                         "hTTps://host:8443/x",
	"ftp://user:S3CRET@host/x":                                "ftp://host/x",
	"ssh://user:S3CRET@host/x":                                "ssh://user@host/x",
	"git+ssh://user:S3CRET@host/x":                            "git+ssh://user@host/x",
	"https://user:a@S3CRET@host/x":                            "https://host/x",
	"https://user:S3 CRET@host/x":                             "https://host/x",
	"https://user:a S3CRET@b@host/x":                          "https://host/x",
	"https://user:12 S3CRET@host/x":                           "https://host/x",
	"https://user:a/S3CRET@host/x":                            "https://host/x",
	"https://user:S3CRET%40%2f@host/x":                        "https://host/x",
	"https://us%65r%3AS3CRET@host/x":                          "https://host/x",
	"fatal: unable to access 'https://u:S3CRET@host/x/': 401": "fatal: unable to access 'https://host/x/': 401",
	"https://a:S3CRET@h/ and http://b:S3CRET@i/":              "https://h/ and http://i/",
	"'https://u:a'S3CRET@host/x/'":                            "'https://host/x/'",
	"https://:S3CRET@host/x":                                  "https://host/x",
	"https://host/x?private_token=S3CRET":                     "https://host/x?private_token=[hidden]",
	"https://host/x?a=b&access_token=S3CRET&c=d":              "https://host/x?a=b&access_token=[hidden]&c=d",
	"https://host/x?a=b&token=S3CRET":                         "https://host/x?a=b&token=[hidden]",
	"https://host/x?se=2026&sig=S3CRET%3D":                    "https://host/x?se=2026&sig=[hidden]",
	"https://host/x?X-Amz-Signature=S3CRET&X-Amz-Date=1":      "https://host/x?X-Amz-Signature=[hidden]&X-Amz-Date=1",
	"https://host/x?X-Amz-Security-Token=S3CRET":              "https://host/x?X-Amz-Security-Token=[hidden]",
	"https://host/x?X-Goog-Signature=S3CRET":                  "https://host/x?X-Goog-Signature=[hidden]",
	"https://host/x?private%5Ftoken=S3CRET":                   "https://host/x?private%5Ftoken=[hidden]",
	"https://host/x?PASSWORD=S3CRET;a=b":                      "https://host/x?PASSWORD=[hidden]",
	`{"url":"https://h/x?a=1\u0026token=S3CRET"}`:             `{"url":"https://h/x?a=1\u0026token=[hidden]"}`,
	"<a href=\"https://h/x?a=1&amp;token=S3CRET\">":           "<a href=\"https://h/x?a=1&amp;token=[hidden]\">",
	"redirect=https%3A%2F%2Fuser%3AS3CRET%40host%2Fx":         "redirect=https%3A%2F%2Fhost%2Fx",
	"deploy virt root:S3CRET@10.0.0.7":                        "deploy virt root:[hidden]@10.0.0.7",
	"root:S3@CRET@board: no route":                            "root:[hidden]@board: no route",
	"git clone me:S3CRET@host:x.git":                          "git clone me:[hidden]@host:x.git",
	"Authorization: Basic S3CRET==":                           "Authorization: [hidden]",
	"> authorization: Bearer S3CRET.a.b":                      "> authorization: [hidden]",
	`"Authorization": "token S3CRET"`:                         `"Authorization": "[hidden]"`,
	"http.extraheader=AUTHORIZATION: basic S3CRET":            "http.extraheader=AUTHORIZATION: [hidden]",
	"PRIVATE-TOKEN: S3CRET":                                   "PRIVATE-TOKEN: [hidden]",
	"Set-Cookie: id=S3CRET; path=/":                           "Set-Cookie: [hidden]",
	"with bearer S3CRET99 sent":                               "with bearer [hidden] sent",
	"-----BEGIN OPENSSH PRIVATE KEY-----\nS3CRET\nS3CRET\n-----END OPENSSH PRIVATE KEY-----\nx": "[hidden]\nx",
	"-----BEGIN PRIVATE KEY-----\n  | S3CRET\n  | S3CRET":                                       "[hidden]",
	"S3CRET\nS3CRET\n-----END RSA PRIVATE KEY-----\nx":                                          "[hidden]\nx",
	"remote: ghp_S3CRET00000000000000000000000000000000":                                        "remote: [hidden]",
	"glpat-S3CRET000000000000000":                                                               "[hidden]",
}

func TestHideSecrets(t *testing.T) {
	for text, want := range secretTexts {
		got := HideSecrets(text)
		if got != want || strings.Contains(got, "S3") {
			t.Errorf("HideSecrets(%q) = %q; want %q", text, got, want)
		}
		if again := HideSecrets(got); again != got {
			t.Errorf("HideSecrets(%q) = %q; want it unchanged", got, again)
		}
	}
}

func TestHideSecretsLeaves(t *testing.T) {
	for _, text := range []string{
		"", "ssh://git@host/x", "git@host:x.git", "root@10.0.0.7:22", "https://host:8443/@scope/x@1.0", "http://[fe80::1]:80/x", "https://host/x?ref=main&page=2",
		"ghcr.io/me/virt:v1.0@sha256:0123", "virt:v1@sha256:0123", "localhost:5000/x@sha256:01", "soc:gpio@1c0", "32f10100.usb:port@1", "mailto:a@example.com",
		"10.0.0.1:22,root@10.0.0.2", "Basic authentication failed", "the bearer of news", "user@1000.service", "--signers=allowed_signers", "see https://host/x and mail a@example.com",
		"kas.yml:3:15: repos.r", "12:30 root@host", "-----BEGIN PUBLIC KEY-----\nx", "refs/heads/main:refs/x@{1}", "a=b;c=d", "'https://host:80', and a@b", `{"url": "https://user:x", "mail": "a@b"}`, `"error:\nuser@host"`, "https://host:80/a@b",
	} {
		if got := HideSecrets(text); got != text {
			t.Errorf("HideSecrets(%q) = %q; want it unchanged", text, got)
		}
	}
}

func FuzzHideSecrets(f *testing.F) {
	for text := range secretTexts {
		f.Add(text)
	}
	f.Add(`{"a": "Cookie: x\\\"y", "b": "https://u:p\\"@h", "c": ["-----BEGIN PRIVATE KEY-----\\n\\"", "-----END PRIVATE KEY-----"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		once := HideSecrets(text)
		if json.Valid([]byte(text)) && !json.Valid([]byte(once)) {
			t.Errorf("HideSecrets(%q) = %q, which is no JSON", text, once)
		}
		if len(text) < 200 && len(once) > 12*len(text)+20 {
			t.Errorf("HideSecrets(%q) has %d bytes", text, len(once))
		}
		if user := "https://u:x" + strings.Map(wordOnly, text) + "S3CRET@host/"; strings.Contains(HideSecrets(user), "S3CRET") {
			t.Errorf("HideSecrets(%q) = %q", user, HideSecrets(user))
		}
	})
}

// wordOnly leaves what nobody would take for the end of an address.
func wordOnly(c rune) rune {
	if strings.ContainsRune(" \n\"`<>\\/", c) {
		return -1
	}
	return c
}
