package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"slipway/images/lint"
	"slipway/layers/plaintext"
)

const connectivityCheck = "CONNECTIVITY_CHECK_URIS"

// defaultConnectivity is openembedded-core's default.
var defaultConnectivity = "https://www.yoctoproject.org/connectivity.html"

// checkConnectivity asks the servers that bitbake's own check asks. bitbake asks them
// without mirrors, before the first build in a folder.
func checkConnectivity(ctx context.Context, p boardBuild) []Finding {
	if _, there := p.layers.Branch["openembedded-core"]; !there {
		return nil
	}
	noNetwork, err := p.effectiveSetting("BB_NO_NETWORK")
	if p.Build.Offline || err == nil && noNetwork == "1" || os.Getenv("BB_NO_NETWORK") == "1" {
		return []Finding{okFinding("connectivity", "not asked (offline, or BB_NO_NETWORK is set)")}
	}
	addresses, err := lint.Setting(p.project, p.bitbakeDir(), connectivityCheck, defaultConnectivity)
	if set, _ := p.effectiveSetting(connectivityCheck); set != "" {
		addresses = set
	}
	if err != nil {
		return []Finding{{"connectivity", Warning, err.Error(), "it cannot be told which server bitbake asks first", "correct what it says"}}
	}
	var findings []Finding
	for _, address := range strings.Fields(addresses) {
		address, _, _ = strings.Cut(address, ";")
		if !strings.HasPrefix(address, "http") || strings.Contains(address, "$") {
			continue
		}
		if err := fetchPage(ctx, address); err != nil {
			findings = append(findings, Finding{
				"connectivity", Stops, address + " does not answer: " + briefError(err),
				"bitbake asks it before the first build in a folder, past all mirrors, and stops (" + connectivityCheck + ")",
				"where mirrors have all sources, set in " + p.siteConf() + "\n" + connectivityCheck + ` = ""`,
			})
		}
	}
	if len(findings) == 0 {
		return []Finding{okFinding("connectivity", "%s", plaintext.Either(strings.TrimSpace(addresses) == "", "not asked: "+connectivityCheck+" is empty", strings.TrimSpace(addresses)+" answers"))}
	}
	return findings
}

// fetchPage wants a page, as bitbake does: a proxy's error page is none.
func fetchPage(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<16)
	if resp.StatusCode >= http.StatusBadRequest {
		return errors.New(resp.Status)
	}
	return nil
}
