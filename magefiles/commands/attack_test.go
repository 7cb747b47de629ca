package commands

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// attack is one line of a user, over what somebody else supplied.
type attack struct {
	who   string // supplies what the line is about
	tries string
	files map[string]string // below the user's folder
	line  string
	want  string // in the refusal
	ok    bool   // the line succeeds, and says what was wanted: it had nothing to refuse
}

// TestAttacks runs the table of attacks. Each gains nothing: the line is refused with a reason,
// writes nothing but caches and reports, and prints no control character and no secret.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewServer(http.HandlerFunc(hostileServer))
	t.Cleanup(server.Close)
	w.hosts = strings.NewReplacer(append(slices.Clone(w.pairs), "SERVER", server.URL, "PORT", server.URL[strings.LastIndex(server.URL, ":")+1:])...)
	all := slices.Concat(folderAttacks(), trustAttacks(t), imageAttacks(t), serverAttacks(), storeAttacks(), projectAttacks(), inventoryAttacks(), suiteAttacks(), boardAttacks(), streamAttacks())
	if len(all) < 240 {
		t.Errorf("%d attacks; want 240 or more", len(all))
	}
	var wait sync.WaitGroup
	slots := make(chan struct{}, 6)
	seen := map[string]bool{}
	for i, a := range all {
		name := a.who + ": " + a.tries
		if seen[name] {
			t.Errorf("%q is twice in the table", name)
		}
		seen[name] = true
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a.judge(t, fmt.Sprintf("%d %s", i, name), w.run(t, splitWordsOf(a.line), a.files))
		})
	}
	wait.Wait()
	t.Logf("%d attacks", len(all))
}

func (a attack) judge(t *testing.T, name string, r result) {
	if (r.status == 0) != a.ok || a.want == "" || !strings.Contains(strings.Join(strings.Fields(r.out), " "), a.want) {
		t.Errorf("%s\n  %s\n  status %d; want %q, in\n%s", name, a.line, r.status, a.want, r.out)
	}
	if said := cmp.Or(offence(r.out), forgedLine(r.out)); said != "" {
		t.Errorf("%s\n  %s\n  %s", name, a.line, said)
	}
	for _, changed := range r.changed {
		if !ownOutput.MatchString(changed) && !a.ok {
			t.Errorf("%s\n  %s\n  changed %s", name, a.line, changed)
		}
	}
	if r.ran != "" {
		t.Errorf("%s\n  %s\n  ran %s", name, a.line, r.ran)
	}
	if r.late {
		t.Errorf("%s\n  %s\n  did not end in time\n%s", name, a.line, r.out)
	}
}

// newc is a cpio archive with one file, as a bundle of SWUpdate begins.
func newc(name, data string) string {
	entry := func(name, data string) string {
		pad := func(s string) string { return s + strings.Repeat("\x00", (4-len(s)%4)%4) }
		head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 1, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
		return pad(head+name+"\x00") + pad(data)
	}
	return entry(name, data) + entry("TRAILER!!!", "")
}

// goodImage is an image of a disk that flash writes to the board virt.
var goodImage = sync.OnceValue(func() []byte {
	image := make([]byte, 1<<20)
	image[510], image[511], image[450], image[454] = 0x55, 0xaa, 0x83, 1
	copy(image[458:], "\xff\x07")
	copy(image[4096:], "the good content")
	return image
})

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// fields are some of an artifact.json.
type fields map[string]any

func fileEntry(kind, name string, data []byte) fields {
	return fields{"kind": kind, "name": name, "sizeBytes": len(data), "sha256": sumOf(data)}
}

// folder is an artifact of the board bare, with other fields and files.
func folder(change fields, files map[string]string) map[string]string {
	a := fields{"board": "bare", "arch": "amd64", "key": "0123456789abcdef", "built": "2020-01-01T00:00:00Z", "files": []fields{fileEntry("disk", "disk.img", goodImage())}}
	maps.Copy(a, change)
	text, _ := json.Marshal(a)
	all := map[string]string{"got/artifact.json": string(text), "got/disk.img": string(goodImage())}
	for name, data := range files {
		all[name] = data
	}
	return all
}

func folderAttacks() (all []attack) {
	add := func(tries, want string, change fields, files map[string]string) {
		all = append(all, attack{who: "folder", tries: tries, files: folder(change, files), line: "flash ./got out.img", want: want})
	}
	listed := func(name string) fields {
		return fields{"files": []fields{fileEntry("disk", "disk.img", goodImage()), fileEntry("other", name, []byte("x"))}}
	}
	all = append(all, attack{who: "folder", tries: "nothing: the folder is written", files: folder(nil, nil), line: "flash ./got out.img --json", want: `"board": "bare"`, ok: true})
	add("a file outside of the folder", "is no name for a file of an artifact", listed("../boards/lab/board.yml"), nil)
	add("a file by an absolute path", "is no name for a file of an artifact", listed("/etc/hosts"), nil)
	add("a file with .. inside", "is no name for a file of an artifact", listed("a/../../x"), nil)
	for _, name := range []string{"known_hosts", "id_ed25519", "flash.json", "report.json", "report.html", "junit.xml", "artifact.json"} {
		add("a file that Slipway writes itself, "+name, name, listed(name), map[string]string{"got/" + name + ".x": "x"})
	}
	add("another size", "bytes", fields{"files": []fields{{"kind": "disk", "name": "disk.img", "sizeBytes": 7, "sha256": sumOf(goodImage())}}}, nil)
	add("another digest", "the artifact says", fields{"files": []fields{{"kind": "disk", "name": "disk.img", "sizeBytes": 1 << 20, "sha256": sumOf(nil)}}}, nil)
	add("other content of the same size", "the artifact says", nil, map[string]string{"got/disk.img": strings.Replace(string(goodImage()), "good", "evil", 1)})
	add("a size below zero", "bytes", fields{"files": []fields{{"kind": "disk", "name": "disk.img", "sizeBytes": -1, "sha256": sumOf(goodImage())}}}, nil)
	add("no disk image", "no file of kind", fields{"files": []fields{}}, nil)
	add("a disk image that is not there", "no such file", fields{"files": []fields{fileEntry("disk", "gone.img", goodImage())}}, nil)
	add("an unknown board", "not known here", fields{"board": "nosuch"}, nil)
	add("a board by a path", "is no name for a board's folder", fields{"board": "../../etc"}, nil)
	add("a board whose name moves the cursor", "characters that a person cannot see", fields{"board": evil}, nil)
	add("another architecture", "--other-board", fields{"arch": "arm64"}, nil)
	add("a text instead of a number", "artifact.json", fields{"files": "all"}, nil)
	add("no JSON", "artifact.json", nil, map[string]string{"got/artifact.json": "{"})
	add("a description without an end", "artifact.json", nil, map[string]string{"got/artifact.json": `{"board":"bare","key":"` + strings.Repeat("x", 2<<20) + `"}`})
	add("a partition before the disk", "does not lie inside the image", fields{"partitions": []fields{{"name": "data", "use": "data", "offsetBytes": -4096, "sizeBytes": 4096}}}, nil)
	add("a partition behind the disk", "inside the image", fields{"partitions": []fields{{"name": "data", "use": "data", "offsetBytes": 1 << 20, "sizeBytes": 1 << 40}}}, nil)
	for line, want := range map[string]string{
		"flash virt-arm64 out.img --image=got/disk.img":           "--other-board",
		"flash virt-arm64 out.img --image=got/disk.img --dry-run": "--other-board",
		"update raspberrypi5 HOST got/new.swu --yes":              "--other-board",
		"update raspberrypi5 HOST got/new.swu --dry-run":          "--other-board",
		"fleet update raspberrypi5 inv.yml got/new.swu --yes":     "--other-board",
	} {
		all = append(all, attack{who: "folder", tries: "files of another board: " + line, files: folder(nil, map[string]string{"got/new.swu": newc("sw-description", "software = { version = \"1\"; };\n"), "inv.yml": "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"}), line: line, want: want})
	}
	for _, where := range []string{"got/known_hosts", "build/bare/known_hosts", "boards/bare/known_hosts", "known_hosts"} {
		for _, board := range []string{"./got", "bare"} {
			all = append(all, attack{who: "folder", tries: "trust in a board by " + where + ", for " + board, files: folder(nil, map[string]string{where: "* KEY4\n", "my.yml": "file: {/etc/passwd: {exists: true}}\n"}), line: "smoke " + board + " HOST4 --suite=my.yml", want: "host key"})
		}
	}
	return all
}

// signer signs by ssh-keygen.
type signer struct{ key, public string }

func newSigner(t *testing.T) signer {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	mustRun(t, ".", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return signer{key, string(public)}
}

func (s signer) sign(t *testing.T, data []byte) string {
	t.Helper()
	cmd := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", s.key, "-n", "file")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// trustAttacks try to pass as signed.
func trustAttacks(t *testing.T) (all []attack) {
	t.Helper()
	mine, other := newSigner(t), newSigner(t)
	list := func(s signer) string { return "lab@example.com " + s.public }
	add := func(who, tries, line, want string, files map[string]string) {
		own := folder(nil, files)
		for name, data := range files {
			own["in/"+name] = data
		}
		own["trusted/signers"] = list(mine)
		own["empty"] = ""
		all = append(all, attack{who: who, tries: tries, files: own, line: line, want: want})
	}
	text := []byte(folder(nil, nil)["got/artifact.json"])
	signed := func(s signer, data []byte) string { return s.sign(t, data) }
	flash := "flash ./got out.img --signers=trusted/signers"
	image := "flash bare out.img --image=in/loose.img --signers=trusted/signers"
	loose := map[string]string{"loose.img": string(goodImage())}
	with := func(more map[string]string) map[string]string {
		m := maps.Clone(loose)
		maps.Copy(m, more)
		return m
	}
	add("folder", "no signature", flash, "is not signed", nil)
	add("folder", "the signature of another key", flash, "got/artifact.json.sig", map[string]string{"got/artifact.json.sig": signed(other, text)})
	add("folder", "the signature of another file", flash, "got/artifact.json.sig", map[string]string{"got/artifact.json.sig": signed(mine, goodImage())})
	add("folder", "a signature that is none", flash, "artifact.json.sig", map[string]string{"got/artifact.json.sig": evil})
	add("folder", "a signed description and another image", flash, "sha256", map[string]string{"got/artifact.json.sig": signed(mine, text), "got/disk.img": strings.Replace(string(goodImage()), "good", "evil", 1)})
	add("folder", "its own list of signers", "flash ./got out.img --signers=got/signers", "lies beside the files", map[string]string{"got/signers": list(other), "got/artifact.json.sig": signed(other, text)})
	add("folder", "evidence without a signature", "evidence ./got --signers=trusted/signers", "sign", nil)
	add("folder", "evidence with an empty list", "evidence ./got --signers=empty", "empty", nil)
	add("folder", "evidence signed by another key", "evidence ./got --signers=trusted/signers", "artifact.json.sig", map[string]string{"got/artifact.json.sig": signed(other, text)})
	add("image", "no signature", image, "is not signed", loose)
	add("image", "the signature of another key", image, "loose.img.sig", with(map[string]string{"loose.img.sig": signed(other, goodImage())}))
	add("image", "the signature of another image", image, "loose.img.sig", with(map[string]string{"loose.img.sig": signed(mine, []byte("x"))}))
	add("image", "an empty list of signers", "flash bare out.img --image=loose.img --signers=empty", "empty", loose)
	add("image", "a list of signers that is a key", "flash bare out.img --image=loose.img --signers=brokenkey", "brokenkey", loose)
	add("image", "a digest of another file", "flash bare out.img --image=loose.img --digest=sha256:"+sumOf(nil), "want "+sumOf(nil), loose)
	add("image", "a digest that is none", "flash bare out.img --image=loose.img --digest=sha256:abc", "sha256", loose)
	for name, sums := range map[string]string{
		"the digest of a file elsewhere":  sumOf(goodImage()) + "  ../../debug/loose.img\n",
		"a digest without a name":         sumOf(goodImage()) + "\n",
		"the digest of another name":      sumOf(goodImage()) + "  other.img\n",
		"two digests of one name":         sumOf(goodImage()) + "  loose.img\n" + sumOf(nil) + "  loose.img\n",
		"a list that is no list":          evil,
		"an absolute name":                sumOf(goodImage()) + "  /srv/loose.img\n",
		"a digest of another algorithm":   strings.Repeat("a", 32) + "  loose.img\n",
		"a name that moves the cursor":    sumOf(goodImage()) + "  \x1b[2Jloose.img\n",
		"a wrong digest in a right list":  sumOf(nil) + "  loose.img\n",
		"an empty list":                   "",
		"a name with a folder before it":  sumOf(goodImage()) + "  x/loose.img\n",
		"a name in another case":          sumOf(goodImage()) + "  LOOSE.IMG\n",
		"a comment with the right digest": "# " + sumOf(goodImage()) + "  loose.img\n",
	} {
		add("digests", name, "flash bare out.img --image=loose.img --digest=SUMS", cmp.Or(map[string]string{"a wrong digest in a right list": "want " + sumOf(nil)}[name], "SUMS"), with(map[string]string{"SUMS": sums}))
	}
	return all
}

func zipped(p []byte) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(p)
	_ = w.Close()
	return b.String()
}

func imageAttacks(t *testing.T) (all []attack) {
	t.Helper()
	good := goodImage()
	change := func(off int, text string) string {
		p := slices.Clone(good)
		copy(p[off:], text)
		return string(p)
	}
	elf := func(machine string) string {
		return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + machine + "\x00"
	}
	packed := zipped(good)
	for _, x := range []struct{ name, data, want string }{
		{"an error page of a server", "<html>404</html>\n", "it is a web page"},
		{"a text that moves the cursor", evil, "image.img"},
		{"nothing", "", "empty"},
		{"zeros", string(make([]byte, 1<<20)), "zeros"},
		{"a program", "\x7fELF" + string(make([]byte, 1<<16)), "a program (ELF)"},
		{"a kernel", string(make([]byte, 56)) + "ARMd" + string(make([]byte, 4096)), "a Linux kernel"},
		{"a device tree", "\xd0\x0d\xfe\xed" + string(make([]byte, 4096)), "a device tree"},
		{"a boot stream", "\x42\x66\x02\x13" + string(make([]byte, 4096)), "a boot stream"},
		{"a Debian package", "!<arch>\ndebian-binary" + string(make([]byte, 4096)), "a Debian package"},
		{"a bundle of SWUpdate", "070701" + strings.Repeat("0", 104) + "sw-description", "a bundle of SWUpdate"},
		{"an image that is cut off", change(0, "")[:1<<19], "cut off"},
		{"a partition behind the end", change(458, "\xff\xff\xff\x7f"), "cut off"},
		{"a program for another architecture", change(8192, elf("\xb7")), "for arm64, and board bare is amd64"},
		{"a loader for another architecture", change(8192, "BOOTAA64EFI"), "for arm64, and board bare is amd64"},
		{"a kernel for another architecture", change(8192+56, "ARMd"), "for arm64, and board bare is amd64"},
		{"the same, packed", zipped([]byte(change(8192, elf("\xb7")))), "for arm64, and board bare is amd64"},
		{"an image that is packed twice", zipped([]byte(packed)), "packed twice"},
		{"a packed image that is cut off", packed[:len(packed)-6], "image.img"},
		{"a packed image with a wrong checksum", packed[:len(packed)-8] + "\x00\x00\x00\x00" + packed[len(packed)-4:], "image.img"},
		{"a packed image with data behind it", packed + "x", "image.img"},
		{"a packed text", zipped([]byte(evil)), "image.img"},
		{"xz that is none", "\xfd7zXZ\x00" + evil, "image.img"},
		{"zstd that is none", "\x28\xb5\x2f\xfd" + evil, "image.img"},
		{"zip that is none", "PK\x03\x04" + evil, "image.img"},
		{"bzip2 that is none", "BZh9" + evil, "image.img"},
		{"a sparse image that is cut off", "\x3a\xff\x26\xed\x01\x00\x00\x00\x1c\x00\x0c\x00", "image.img"},
	} {
		all = append(all, attack{who: "image", tries: x.name, files: map[string]string{"image.img": x.data}, line: "flash bare out.img --image=image.img", want: x.want})
	}
	block := func(text string) map[string]string {
		return map[string]string{"image.img": string(good), "image.img.bmap": text}
	}
	bmap := `<?xml version="1.0" ?><bmap version="2.0"><ImageSize>%d</ImageSize><BlockSize>4096</BlockSize><BlocksCount>%d</BlocksCount><MappedBlocksCount>%d</MappedBlocksCount><ChecksumType>sha256</ChecksumType><BmapFileChecksum>%s</BmapFileChecksum><BlockMap><Range chksum="%s">%s</Range></BlockMap></bmap>`
	for _, x := range []struct{ name, text, want string }{
		{"a block map that is none", evil, "image.img.bmap"},
		{"entities without an end", `<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;">]><bmap version="2.0">&b;</bmap>`, "image.img.bmap"},
		{"a block map of another size", fmt.Sprintf(bmap, 1<<30, 1<<18, 1, sumOf(nil), sumOf(nil), "0"), "image.img.bmap"},
		{"a block map that leaves the image", fmt.Sprintf(bmap, 1<<20, 256, 1, sumOf(nil), sumOf(nil), "999999999"), "image.img.bmap"},
		{"a block map with a wrong checksum", fmt.Sprintf(bmap, 1<<20, 256, 1, sumOf(nil), sumOf(nil), "0"), "image.img.bmap"},
	} {
		all = append(all, attack{who: "image", tries: x.name, files: block(x.text), line: "flash bare out.img --image=image.img", want: x.want})
	}
	for _, x := range []struct{ line, want string }{
		{"flash bare boards/lab/board.yml --image=evil.img --yes=x", "--yes names"},
		{"flash bare /dev/null --image=evil.img", "/dev/null"},
		{"flash bare /etc --image=evil.img", "/etc"},
		{"flash bare out --image=evil.img", "out"},
		{"flash bare out.img,out.img --image=evil.img", "the same device"},
		{"flash bare usb:1-2.3 --image=evil.img", "flash.kinds"},
		{"flash bare /dev/rshim0 --image=evil.img", "flash.kinds"},
		{"flash bare build/virt/artifact.json --image=evil.img --yes=build/virt/artifact.json", "refused"},
		{"flash bare dl/artifact.json --image=evil.img --yes=dl/artifact.json", "refused"},
	} {
		all = append(all, attack{who: "line", tries: x.line, line: x.line, want: x.want})
	}
	return all
}

// hostileServer answers in ways that servers should not.
func hostileServer(w http.ResponseWriter, r *http.Request) {
	switch filepath.Base(r.URL.Path) {
	case "short.img":
		w.Header().Set("Content-Length", "1048576")
		_, _ = w.Write(goodImage()[:4096])
	case "moved.img":
		http.Redirect(w, r, "file:///etc/hosts", http.StatusFound)
	case "loop.img":
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	case "login.img":
		w.Header().Set("WWW-Authenticate", "Basic realm=\"\u202e\"")
		w.WriteHeader(http.StatusUnauthorized)
	case "error.img":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, evil)
	case "page.img":
		_, _ = io.WriteString(w, "<html>"+evil)
	case "good.img":
		_, _ = w.Write(goodImage())
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, evil)
	}
}

func serverAttacks() (all []attack) {
	for _, x := range []struct{ tries, line, want string }{
		{"a redirect to a file here", "flash bare out.img --image=SERVER/moved.img", "redirect refused: to file://"},
		{"redirects without an end", "flash bare out.img --image=SERVER/loop.img", "loop.img"},
		{"a question for a password", "flash bare out.img --image=SERVER/login.img", "401"},
		{"an error that moves the cursor", "flash bare out.img --image=SERVER/nosuch.img", "404"},
		{"a page instead of an image", "flash bare out.img --image=SERVER/page.img", "it is a web page"},
		{"a token in the address", "flash bare out.img --image=http://TOKENsecret@127.0.0.1:PORT/nosuch.img", "404"},
		{"a token in the query", "flash bare out.img --image=SERVER/nosuch.img?private_token=QUERYsecret", "404"},
		{"an image with another digest", "flash bare out.img --image=SERVER/good.img --digest=sha256:" + sumOf(nil), "sha256"},
		{"no list of digests", "flash bare out.img --image=SERVER/good.img --digest=SERVER/page.img", "page.img"},
		{"a password of SSH", "flash bare out.img --image=ssh://root:PASSsecret@127.0.0.1/x.img", "password"},
		{"an option of ssh as a host", "flash bare out.img --image=ssh://-oProxyCommand=touch%20x/x.img", "oProxyCommand"},
		{"a place that is unknown", "flash bare out.img --image=ftp://127.0.0.1/x.img", "ftp"},
		{"a registry with a web page", "flash bare out.img --image=oci://127.0.0.1:PORT/lab:v1", "127.0.0.1"},
	} {
		all = append(all, attack{who: "server", tries: x.tries, line: x.line, want: x.want})
	}
	return all
}

// storeOf is a store with one artifact of these layers: name and content.
func storeOf(layers [][2]string, change func(m fields)) map[string]string {
	files := map[string]string{"shop/oci-layout": `{"imageLayoutVersion":"1.0.0"}`}
	blob := func(data string) fields {
		files["shop/blobs/sha256/"+sumOf([]byte(data))] = data
		return fields{"digest": "sha256:" + sumOf([]byte(data)), "size": len(data)}
	}
	describe := func(kind, data string) fields {
		d := blob(data)
		d["mediaType"] = kind
		return d
	}
	var all []fields
	for _, l := range layers {
		d := describe("application/octet-stream", l[1])
		d["annotations"] = fields{"org.opencontainers.image.title": l[0]}
		all = append(all, d)
	}
	m := fields{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "artifactType": "application/vnd.slipway.artifact.v1+json", "config": describe("application/vnd.oci.empty.v1+json", "{}"), "layers": all}
	if change != nil {
		change(m)
	}
	text, _ := json.Marshal(m)
	d := describe("application/vnd.oci.image.manifest.v1+json", string(text))
	d["annotations"] = fields{"org.opencontainers.image.ref.name": "v1"}
	index, _ := json.Marshal(fields{"schemaVersion": 2, "manifests": []fields{d}})
	files["shop/index.json"] = string(index)
	return files
}

func storeAttacks() (all []attack) {
	text := folder(nil, nil)["got/artifact.json"]
	base := [][2]string{{"artifact.json", text}, {"disk.img", string(goodImage())}}
	add := func(tries, want string, files map[string]string) {
		all = append(all, attack{who: "store", tries: tries, files: files, line: "pull ./shop:v1 --into=here", want: want})
	}
	for _, name := range []string{"../x", "/etc/x", "a/../../x", "known_hosts", "id_ed25519", "id_ed25519.pub", "flash.json", "report.html", "junit.xml", ".git/hooks/post-checkout", "x\x1b[2J", ".", ""} {
		want := "is no name of an artifact's file"
		if name != "" && name == filepath.Base(name) && name[0] != '.' && !strings.Contains(name, "\x1b") {
			want = "which artifact.json does not list"
		}
		add(fmt.Sprintf("a file named %q", name), want, storeOf(slices.Concat(base, [][2]string{{name, "x"}}), nil))
	}
	add("no artifact.json", "it has no artifact.json", storeOf(base[1:], nil))
	add("a file twice", "two files with the name", storeOf(slices.Concat(base, base[1:]), nil))
	add("a file that artifact.json does not list", "which artifact.json does not list", storeOf(slices.Concat(base, [][2]string{{"more.txt", "x"}}), nil))
	add("another disk image", "no such file with its size and digest", storeOf([][2]string{base[0], {"disk.img", strings.Replace(string(goodImage()), "good", "evil", 1)}}, nil))
	add("no disk image", "no such file with its size and digest", storeOf(base[:1], nil))
	add("a size of its own", "no such file with its size and digest", storeOf(base, func(m fields) { m["layers"].([]fields)[1]["size"] = 7 }))
	add("a digest of its own", "no such file with its size and digest", storeOf(base, func(m fields) { m["layers"].([]fields)[1]["digest"] = "sha256:" + sumOf(nil) }))
	add("a digest of another kind", "want sha256:", storeOf(base, func(m fields) { m["layers"].([]fields)[1]["digest"] = "md5:../../../x" }))
	add("an index that is none", "oci-layout names version", map[string]string{"shop/oci-layout": "{}", "shop/index.json": evil})
	return all
}

func projectAttacks() (all []attack) {
	commit := strings.Repeat("1", 40)
	kas := func(repo string) map[string]string {
		return map[string]string{"p.yml": "header: {version: 14}\nmachine: qemux86-64\nrepos:\n  one:\n" + repo}
	}
	add := func(tries, want string, files map[string]string) {
		all = append(all, attack{who: "project", tries: tries, files: files, line: "layers checkout p.yml", want: want})
	}
	// A name that ends in a dot or a blank is git's on Windows, and one with characters that HFS leaves out is on macOS.
	for _, place := range []string{".git", ".git/hooks", "r/.git/hooks", "a/../.git", ".GIT", ".Git/hooks", "git~1", "GIT~1/x", ".git.", ".git ", ".g\u200cit", ".git\u200d/hooks", "../x", "/srv/x", "a/../../b"} {
		want := "is one of git's own"
		if !strings.Contains(strings.ToLower(place), "it") {
			want = "is not below the project's"
		}
		add(fmt.Sprintf("a repository in %q", place), want, kas("    url: \"https://127.0.0.1:1/x.git\"\n    commit: "+commit+"\n    path: "+jsonText(place)+"\n"))
	}
	for _, url := range []string{"ext::sh -c touch% x", "--upload-pack=touch x", "-oProxyCommand=x:y", "ssh://-oProxyCommand=touch/x.git", "fd::7", "file:///nonexistent/x.git"} {
		want := "is not a repository's address"
		if strings.Contains(url, "://") {
			want = "cannot fetch from"
		}
		add(fmt.Sprintf("a repository at %q", url), want, kas("    url: "+jsonText(url)+"\n    commit: "+commit+"\n"))
	}
	for _, ref := range []string{"commit: 9b44f41", "commit: \"-x\"", "commit: HEAD", "branch: \"--upload-pack=x\"", "branch: \"a..b\"", "refspec: 9b44f41", "tag: \"-d\"", "commit: " + commit[:39]} {
		kind, _, _ := strings.Cut(ref, ":")
		want := map[string]string{"commit": "is not a whole commit id", "refspec": "may be a commit, a branch or a tag"}[kind]
		if want == "" {
			want = "cannot be a branch or tag"
		}
		add("a version by "+ref, want, kas("    url: \"https://127.0.0.1:1/x.git\"\n    "+ref+"\n"))
	}
	for _, x := range []struct{ tries, text, want string }{
		{"a layer outside of its repository", "    url: \"https://127.0.0.1:1/x.git\"\n    commit: " + commit + "\n    layers: {\"../../etc\": }\n", "is not a folder of the repository"},
		{"a patch outside of its repository", "    url: \"https://127.0.0.1:1/x.git\"\n    commit: " + commit + "\n    patches: {a: {repo: one, path: \"../../../etc/passwd\"}}\n", "leaves its repository"},
		{"a name that moves the cursor", "    url: " + jsonText("https://127.0.0.1:1/"+evil) + "\n    commit: " + commit + "\n", "holds a control character"},
		{"a password in the address", "    url: \"HTTP://user:PASSsecret@127.0.0.1:1/x.git\"\n    commit: " + commit + "\n", "cannot fetch from"},
		{"a token in the address", "    url: \"https://TOKENsecret@127.0.0.1:1/x.git\"\n    commit: " + commit + "\n", "cannot fetch from"},
		{"a token in the query", "    url: \"https://127.0.0.1:1/x.git?private_token=QUERYsecret\"\n    commit: " + commit + "\n", "cannot fetch from"},
	} {
		add(x.tries, x.want, kas(x.text))
	}
	for _, x := range []struct{ tries, text string }{
		{"no YAML", evil},
		{"a version of tomorrow", "header: {version: 9999}\nmachine: a\n"},
		{"aliases without an end", "header: {version: 14}\na: &a [1,1]\nb: &b [*a,*a]\nmachine: *b\n"},
		{"an include of itself", "header: {version: 14, includes: [p.yml]}\nmachine: a\n"},
		{"an include outside", "header: {version: 14, includes: [\"../../../etc/passwd\"]}\nmachine: a\n"},
		{"a machine with a line of its own", "header: {version: 14}\nmachine: \"a\\nBAD = 1\"\n"},
		{"a tag of YAML", "header: {version: 14}\nmachine: !!python/object/apply:os.system [touch x]\n"},
	} {
		add(x.tries, "p.yml", map[string]string{"p.yml": x.text})
	}
	for _, x := range []struct{ tries, line, want string }{
		{"a board.yml that forges a line", "build evil --dry-run", "boards/evil/board.yml"},
		{"a machine that moves the cursor", "layers dump kas.yml", "kas.yml"},
		{"a file that is not there", "build boards/bare/kas.yml:nosuch.yml --dry-run", "nosuch.yml"},
		{"a file that is not there, in a real build", "build boards/bare/kas.yml:nosuch.yml", "nosuch.yml"},
	} {
		all = append(all, attack{who: "project", tries: x.tries, line: x.line, want: x.want})
	}
	return all
}

func inventoryAttacks() (all []attack) {
	host := func(vars string) string { return "all: {hosts: {a: {" + vars + "}}}\n" }
	for _, x := range []struct{ tries, text, want string }{
		{"a range without an end", "all: {hosts: {\"n[1:99999999]\": }}\n", "more than 10000 hosts"},
		{"ranges of ranges", "all: {hosts: {\"n[1:9999][1:9999][1:9999]\": }}\n", "more than 10000 hosts"},
		{"aliases without an end", "a: &a [x,x]\nb: &b [*a,*a,*a]\nall: {hosts: *b}\n", ""},
		{"a group that is in itself", "all: {children: {g: {children: {g: }}}}\n", "is its own child"},
		{"an option of ssh as an address", host("ansible_host: \"-oProxyCommand=touch x\""), "did not pass"},
		{"a program as a proxy", host("ansible_host: 127.0.0.1, ansible_ssh_common_args: \"-o ProxyCommand='touch x'\""), "ProxyCommand is not run"},
		{"a port that is none", host("ansible_host: 127.0.0.1, ansible_port: 70000"), "is not a number from 1 to 65535"},
		{"a port that is a text", host("ansible_host: 127.0.0.1, ansible_port: \"22; touch x\""), "is not a number from 1 to 65535"},
		{"a template", host("ansible_host: \"{{ lookup('pipe', 'touch x') }}\""), "which Slipway does not fill in"},
		{"a tag of YAML", "all: !!python/object/apply:os.system [touch x]\n", ""},
		{"no YAML", evil, ""},
		{"a list instead of groups", "- a\n- b\n", ""},
		{"a name that moves the cursor", "all: {hosts: {" + jsonText(evil) + ": {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", ""},
		{"a password in the user", host("ansible_host: 127.0.0.1, ansible_port: 1, ansible_user: \"root:PASSsecret\""), "did not pass"},
		{"two hosts of one address", "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}, b: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", "did not pass"},
		{"nothing", "", ""},
	} {
		all = append(all, attack{who: "inventory", tries: x.tries, files: map[string]string{"inv.yml": x.text}, line: "fleet smoke bare inv.yml", want: cmp.Or(x.want, "inv.yml")})
	}
	return all
}

func suiteAttacks() (all []attack) {
	for _, x := range []struct{ tries, text string }{
		{"no YAML", evil},
		{"aliases without an end", "file: &a {/x: {exists: true}}\nmount: *a\n"},
		{"a merge", "file: {<<: {/x: {exists: true}}}\n"},
		{"an unknown section", "fiel: {/x: {exists: true}}\n"},
		{"an unknown attribute", "file: {/x: {exist: true}}\n"},
		{"a template", "file: {\"{{.Env.HOME}}\": {exists: true}}\ncommand: {\"{{range}}\": {}}\n"},
		{"a file of another folder", "gossfile: {\"../../../../etc/passwd\": {}}\n"},
		{"itself", "gossfile: {s.yml: {}}\n"},
		{"one check twice", "file: {/x: {exists: true}, /x: {exists: false}}\n"},
		{"a list", "- a\n"},
		{"a tag of YAML", "file: !!python/object/apply:os.system [touch x]\n"},
		{"a number without an end", "file: {/x: {size: 1e999999}}\n"},
		{"a pattern without an end", "file: {/x: {contents: [\"/(a*)*(b*)*[/\"]}}\n"},
	} {
		all = append(all, attack{who: "suite", tries: x.tries, files: map[string]string{"s.yml": x.text}, line: "smoke HOST2 --suite=s.yml", want: "s.yml"})
	}
	for _, name := range []string{"../../etc/passwd", "nosuch", "/etc/passwd"} {
		all = append(all, attack{who: "suite", tries: "a suite named " + name, line: "smoke HOST2 --suite=" + name, want: name})
	}
	return all
}

// boardAttacks are boards that lie: HOST prints what is hostile for each program and exits
// with 0, and HOST3 runs no line at all, and exits with 0.
func boardAttacks() (all []attack) {
	files := map[string]string{
		"false.yml": "command: {\"false\": {exit-status: 0}}\n", "nosuch.yml": "command: {/no/such/program: {exit-status: 0}}\n",
		"module.yml": "kernel-param: {kernel.nosuch: {value: \"1\"}}\n", "file.yml": "file: {/no/such/file: {exists: true}}\n", "gone.yml": "file: {/etc/passwd: {exists: false}}\n",
		"service.yml": "service: {nosuch: {running: true, enabled: true}}\n", "mount.yml": "mount: {/nosuch: {exists: true}}\n", "process.yml": "process: {nosuch: {running: true}}\n", "user.yml": "user: {nosuch: {exists: true}}\n",
		"port.yml": "port: {\"tcp:1\": {listening: true}}\n", "package.yml": "package: {nosuch: {installed: true}}\n",
		"c.yml": "sysctl: {net.ipv4.ip_forward: \"1\"}\n", "u/a.service": "[Service]\nExecStart=/bin/true\n", "b.swu": newc("sw-description", "software = { version = \"1\"; };\n"),
	}
	for _, host := range []string{"HOST", "HOST3"} {
		for name := range files {
			if check, isSuite := strings.CutSuffix(name, ".yml"); isSuite && check != "c" {
				all = append(all, attack{who: "board", tries: host + " passes the check " + check, files: files, line: "smoke " + host + " --suite=" + name, want: cmp.Or(map[string]string{"HOST3": "not a POSIX shell"}[host], "FAILED")})
			}
		}
		for _, line := range []string{"deploy config bare B c.yml", "deploy files bare B u /nonexistent/slipway-walk", "deploy service bare B u", "deploy undo bare B", "deploy clean bare B", "deploy run bare B oci-dir:store:v1", "update bare B b.swu --yes", "deploy files bare B u /nonexistent/slipway-walk --dry-run"} {
			line = strings.Replace(line, " B", " "+host, 1)
			all = append(all, attack{who: "board", tries: "an answer of 0 to " + line, files: files, line: line, want: cmp.Or(map[string]string{"HOST3": "not a POSIX shell"}[host], "Error:")})
		}
	}
	all = append(all,
		attack{who: "board", tries: "an audit of nothing", files: map[string]string{"hollow/x": "x"}, line: "audit ./hollow", want: "no root file system"},
		attack{who: "board", tries: "an audit of names that forge a line", line: "audit rootfs", want: "rootfs"},
		attack{who: "board", tries: "an audit of an image with such names", line: "audit evil.ext4", want: "evil.ext4"},
	)
	return all
}

func streamAttacks() (all []attack) {
	head := "\x42\x66\x02\x13"
	for _, x := range []struct{ tries, line, want string }{
		{"a stream that is cut", "bfb check s.bfb", "s.bfb"},
		{"a list of it", "bfb list s.bfb", "s.bfb"},
		{"its images", "bfb extract s.bfb", "s.bfb"},
		{"another stream of it", "bfb make out.bfb --base=s.bfb", "s.bfb"},
		{"a text as a stream", "bfb check evil.txt", "evil.txt"},
		{"a bundle that is a text", "update virt HOST evil.txt --yes", "evil.txt"},
		{"a bundle that is cut", "update virt HOST evil.raucb --yes", "evil.raucb"},
		{"a cpio that is none", "update virt HOST evil.swu --yes", "evil.swu"},
		{"a report that is a text", "report evil.txt --as=tap", "evil.txt"},
		{"reports that are texts", "trends notes", "no run was found"},
		{"an archive without an image", "deploy container bare HOST2 evil.tar", "Error:"},
	} {
		all = append(all, attack{who: "stream", tries: x.tries, files: map[string]string{"s.bfb": head + "\x00\x10", "notes/report.json": evil}, line: x.line, want: x.want})
	}
	return all
}
