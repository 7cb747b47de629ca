package bench

import (
	"strings"

	"slipway/layers/plaintext"
)

// storeTools are the commands for a registry. limit sends the same bytes to a server that writes
// them to the same disk without digests, and does only the first steps.
var storeTools = []struct{ name, server, push, pull string }{
	{"ours", "registry", "{program} push {dir}/{version} 127.0.0.1:{far}/bench/images:{version}", "{program} pull 127.0.0.1:{far}/bench/images:{version} --into={dir}/got"},
	{"oras", "registry", "oras push --plain-http --no-tty 127.0.0.1:{far}/bench/images:{version} artifact.json disk.img update.raucb app.oci.tar", "oras pull --plain-http --no-tty -o {dir}/got 127.0.0.1:{far}/bench/images:{version}"},
	{"limit", "limit", "curl -sSf -T {disk.img,update.raucb,app.oci.tar} http://127.0.0.1:{far}/", "curl -sSf --create-dirs -o {dir}/got/#1 http://127.0.0.1:{far}/{disk.img,update.raucb,app.oci.tar}"},
}

// storeSteps are the steps of each tool, in order. The registry is empty before the first.
var storeSteps = []struct{ name, version string }{
	{"push first", "v1"},
	{"push again", "v1"},
	{"push second version", "v2"},
	{"pull first", "v1"},
	{"pull again", "v1"},
	{"pull second version", "v2"},
}

// store measures the push of an artifact to Debian's docker-registry and the pull, by Slipway, ORAS
// and HTTP: a first version, the same again, a second version. Also of a folder, compared with cp.
var store = area{
	rounds: 3, mib: 1024,
	packages: []string{"docker-registry", "curl"},
	ordered:  true,
	variants: storeVariants(),
	ratios:   storeRatios(),
}

// storeVariants returns each tool's steps (of the tool named limit only the first push and pull),
// then those of a folder.
func storeVariants() (all []variant) {
	for _, tool := range storeTools {
		for i, step := range storeSteps {
			command := plaintext.Either(strings.HasPrefix(step.name, "pull"), tool.pull, tool.push)
			v := variant{name: tool.name + " " + step.name, command: strings.ReplaceAll(command, "{version}", step.version), dir: "{dir}/" + step.version, prepare: "prepare"}
			if i == 0 {
				v.prepare += " " + tool.server
			}
			if step.name == "pull second version" {
				v.check = "check"
			}
			if tool.name != "limit" || strings.HasSuffix(step.name, "first") {
				all = append(all, v)
			}
		}
	}
	return append(all,
		variant{name: "ours folder push first", command: "{program} push {dir}/v1 {dir}/folder:v1", prepare: "prepare folder"},
		variant{name: "ours folder push second version", command: "{program} push {dir}/v2 {dir}/folder:v2", prepare: "prepare"},
		variant{name: "ours folder pull first", command: "{program} pull {dir}/folder:v2 --into={dir}/got", prepare: "prepare", check: "check"},
		variant{name: "limit folder push first", command: "cp -r {dir}/v1 {dir}/copy", prepare: "prepare"},
		variant{name: "limit folder push on disk", command: `sh -c "cp -r {dir}/v1 {dir}/copy/again && sync -f {dir}/copy"`, prepare: "prepare"}, // as ours is, at the end
	)
}

// storeRatios returns ratios of times, and for pulls after the first one also of bytes on the line.
func storeRatios() []ratio {
	all := []ratio{
		{name: "push_limit_over_ours", over: "limit push first", under: "ours push first"},
		{name: "pull_limit_over_ours", over: "limit pull first", under: "ours pull first"},
		{name: "folder_cp_over_ours", over: "limit folder push first", under: "ours folder push first"},
		{name: "folder_cp_and_sync_over_ours", over: "limit folder push on disk", under: "ours folder push first"},
	}
	for _, step := range storeSteps {
		all = append(all, ratio{name: strings.ReplaceAll(step.name, " ", "_") + "_oras_over_ours", over: "oras " + step.name, under: "ours " + step.name})
	}
	for _, step := range []string{"pull again", "pull second version"} {
		all = append(all, ratio{name: strings.ReplaceAll(step, " ", "_") + "_bytes_ours_over_oras", over: "ours " + step, under: "oras " + step, of: lineBytes})
	}
	return all
}
