// The steps of Jenkins that the Jenkinsfile uses, without Jenkins.
import groovy.json.JsonOutput
import groovy.json.JsonSlurper
import org.codehaus.groovy.control.CompilerConfiguration

class Run {
  static File ws
  static String key
  static String before
  static Map vars = [:]
  static List steps = []
  static String failed = ''
  static String board = ''

  static String name(String script) {
    def word = (script =~ /slipway (\S+)/)
    String step = word.find() ? [up: 'prove', ci: 'plan'].get(word.group(1), word.group(1)) : script
    return (board ? "board ${board}/" : 'check/') + step
  }

  static String sh(String script, boolean output) {
    long began = System.currentTimeMillis()
    List env = (System.getenv() + vars).collect { k, v -> "${k}=${v}".toString() }
    File out = File.createTempFile('step', '.out')
    Process p = new ProcessBuilder('bash', '-e', '-c', script).directory(ws).with {
      environment().putAll(vars)
      redirectError(ProcessBuilder.Redirect.appendTo(new File(ws.parentFile, 'jenkins.log')))
      redirectOutput(out)
      start()
    }
    int status = p.waitFor()
    String text = out.text
    out.delete()
    new File(ws.parentFile, 'jenkins.log') << text
    println String.format('  %-40s %6.1f s%s', name(script), (System.currentTimeMillis() - began) / 1000.0d, status ? '  red' : '')
    if (status != 0) {
      failed = failed ?: name(script)
      throw new RuntimeException("script returned exit code ${status}")
    }
    steps << name(script)
    return output ? text : null
  }
}

abstract class Steps extends Script {
  def getEnv() { Run.vars }
  def getScm() { 'scm' }
  static Map build = [description: null]
  def getCurrentBuild() { build }
  def properties(list) { }
  def disableConcurrentBuilds(Map m) { m }
  def buildDiscarder(m) { m }
  def logRotator(Map m) { m }
  def node(String label, Closure c) { c() }
  def stage(String name, Closure c) { c() }
  def timestamps(Closure c) { c() }
  def timeout(Map m, Closure c) { c() }
  def checkout(s) { [GIT_PREVIOUS_SUCCESSFUL_COMMIT: Run.before ?: null] }
  def sh(String script) { Run.sh(script, false) }
  def sh(Map m) { Run.sh(m.script, m.returnStdout) }
  def readJSON(Map m) { new JsonSlurper().parseText(m.text) }
  def fileExists(String name) { new File(Run.ws, name).exists() }
  def readFile(String name) { new File(Run.ws, name).text }
  def stash(Map m) { }
  def unstash(String name) { }
  def archiveArtifacts(Map m) { }
  def junit(Map m) { assert m.allowEmptyResults || new File(Run.ws, m.testResults).exists() }
  def file(Map m) { m }
  def error(String text) { throw new RuntimeException(text) }
  def withCredentials(list, Closure c) { withEnv(list.collect { it.variable + '=' + Run.key }, c) }
  def withEnv(list, Closure c) {
    Map old = new HashMap(Run.vars)
    String board = Run.board
    list.each { String pair ->
      def (k, v) = pair.split('=', 2)
      Run.vars[k] = v
      if (k == 'BOARD') { Run.board = v }
    }
    try {
      c()
    } finally {
      Run.vars = old
      Run.board = board
    }
  }
  def parallel(Map branches) { branches.each { name, c -> c() } }
}

def (jenkinsfile, ws, key, before, result) = args
Run.ws = new File(ws)
Run.key = key
Run.before = before
Run.vars.SLIPWAY_URL = System.getenv('SLIPWAY_URL')
def conf = new CompilerConfiguration(scriptBaseClass: 'Steps')
int status = 0
try {
  new GroovyShell(this.class.classLoader, new Binding(), conf).evaluate(new File(jenkinsfile))
} catch (Throwable e) {
  println "Jenkinsfile: ${e}"
  status = 1
}
new File(result).text = JsonOutput.toJson([steps: Run.steps, failed: Run.failed, summary: Steps.build.description ?: ''])
System.exit(status)
